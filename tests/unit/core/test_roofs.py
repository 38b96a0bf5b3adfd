"""Roofs by numbers: what an operation does, when repeats are steady, which device is slow."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from flagbench_core.case_kinds import MEASURE
from flagbench_core.evidence import EvidenceError, Facts, derive
from flagbench_core.evidence.columns import COLUMNS, FLOPS
from flagbench_core.evidence.document import WINDOW, RecordEvidence, Span, read_evidence
from flagbench_core.evidence.roofs import (
    amount,
    bus_factor,
    compare_results,
    interval,
    is_steady,
    measured_operations,
    spread,
)
from flagbench_core.evidence.slow_devices import find_slow_devices, slowest_device

PRODUCT = {"operation": "matmul", "precision": "bf16", "shape": [8192, 4096, 2048]}


def test_amounts_of_operations() -> None:
    assert amount(PRODUCT) == 2 * 8192 * 4096 * 2048
    assert amount({"operation": "copy", "bytes": 1000}) == 2000
    assert amount({"operation": "h2d", "bytes": 1000}) == 1000
    assert amount({"operation": "all_gather", "bytes": 1000}) == 1000
    with pytest.raises(EvidenceError):
        amount({"operation": "matmul", "bytes": 1000})


@pytest.mark.parametrize(
    ("operation", "ranks", "factor"),
    [("all_reduce", 8, 1.75), ("all_reduce", 2, 1.0), ("all_gather", 8, 0.875), ("all_to_all", 16, 0.9375)],
)
def test_bus_factors_are_those_of_nccl_tests(operation: str, ranks: int, factor: float) -> None:
    assert bus_factor(operation, ranks) == factor


def test_steady_repeats_neither_drift_nor_scatter() -> None:
    drawn = random.Random(1)
    quiet = [drawn.gauss(1.0, 0.005) for _ in range(20)]
    assert is_steady(quiet)
    assert not is_steady(quiet[:19])
    assert is_steady([*quiet[:19], 25.0])  # one interrupted repeat
    assert not is_steady([1.0 + 0.005 * index for index in range(20)])
    assert not is_steady([1.0, 1.3] * 10)
    assert is_steady([1.0, 1.01, 0.99], repeats=20)  # blocks of a large job
    assert not is_steady([0.9, 1.0, 1.1], repeats=20)
    assert spread([9.0, 10.0, 11.0]) == pytest.approx(0.14826)


def test_interval_of_the_median_of_twenty() -> None:
    assert interval(range(1, 21)) == (6, 15)  # 95.9 %; 7 to 14 is 88.5 %
    assert interval(range(5)) is None


def made_up(seed: int, slower: float) -> list[list[float]]:
    """Nine measurements of four devices that others disturb by some percent, the last device slower by a factor."""
    drawn = random.Random(seed)
    rates = [[drawn.gauss(1, 0.03) for _ in range(4)] for _ in range(9)]
    return [[*own[:3], own[3] * slower] for own in rates]


def test_a_slow_device_is_slow_in_all_measurements_together() -> None:
    for seed in range(20):
        assert [each["rank"] for each in find_slow_devices(made_up(seed, 1 / 1.2))] == [3]
        assert find_slow_devices(made_up(seed, 1.0)) == []
    assert find_slow_devices([[1.0], []]) == []


def test_the_slowest_of_eight_devices_is_not_the_middle_one() -> None:
    rates = [2000.0, 2010.0, 1990.0, 2005.0, 1995.0, 1400.0, 2002.0, 1998.0]
    assert slowest_device(rates) == {"rank": 5, "value": 1400.0, "share": 1400.0 / 2000.0}
    assert slowest_device([2000.0, 1400.0]) == {"rank": 1, "value": 1400.0, "share": 0.7}
    assert slowest_device([2000.0, 2000.0]) == {"rank": 0, "value": 2000.0, "share": 1.0}
    assert slowest_device([2000.0]) is None
    assert slowest_device([]) is None
    assert slowest_device([0.0, 0.0]) == {"rank": 0, "value": 0.0, "share": 1.0}


def span_of(name: str, first: int, times: list[list[int]], operations: int, measured: dict[str, Any]) -> Span:
    world, steps = len(times), len(times[0])
    columns = {each: [[0] * steps for _ in range(world)] for each in COLUMNS}
    columns.update(device=times, host=times, samples=[[operations] * steps for _ in range(world)])
    flops = {each: [0] * world for each in FLOPS}
    return Span(name, WINDOW, first, steps, columns, flops, [], measured=measured)


def evidence_of(*spans: Span) -> RecordEvidence:
    evidence = RecordEvidence(2, 1, list(spans), {}, {}, {}, [], [])
    return read_evidence(evidence.to_json())  # as it is read from a record


FACTS = Facts(MEASURE, "samples", 2, False, "fp32", None, None, "cpu", (), (), counted=False)


def test_metrics_follow_from_recorded_times() -> None:
    """Rank 1 takes a quarter longer for a product; the all-reduce of the larger size counts, by its slowest rank."""
    jitter = list(itertools.islice(itertools.cycle((-1, 0, 1)), 20))
    product = span_of("matmul_bf16", 0, [[t + j for j in jitter] for t in (1000, 1250)], 3, PRODUCT)
    reduce = {"operation": "all_reduce"}
    small = span_of("all_reduce_1000", 20, [[100] * 20, [110] * 20], 2, {**reduce, "bytes": 1000})
    large = span_of("all_reduce", 40, [[100] * 20, [110] * 20], 2, {**reduce, "bytes": 9000})
    found = derive(evidence_of(product, small, large), FACTS)
    named = {entry["name"]: entry for entry in found.metrics}
    flops = 2 * 8192 * 4096 * 2048 * 3
    assert named["matmul_bf16"]["value"] == pytest.approx(flops / 1250e-6 / 1e12)  # the lower middle of two devices
    assert named["matmul_bf16"]["ci95"] == pytest.approx([flops / (1250 + d) / 1e6 for d in (1, -1)])
    assert named["all_reduce_busbw"]["value"] == pytest.approx(2 * 9000 / 110e-6 / 1e9)  # 2(n-1)/n of two is 1
    # As FlagPerf: the mean of both devices; of an all-reduce within a node the bus bandwidth counted twice
    assert named["matmul_bf16_mean"]["value"] == pytest.approx(2 * flops / 2250e-6 / 1e12, rel=1e-4)
    assert named["all_reduce_mean"]["value"] == pytest.approx(2 * 2 * 2 * 9000 / 210e-6 / 1e9)
    assert named["matmul_bf16"]["slowest_device"] == {
        "rank": 1,
        "value": pytest.approx(flops / 1250e-6 / 1e12),
        "share": pytest.approx(0.8),
    }
    slowest = named["matmul_bf16_mean"]["slowest_device"]
    assert (slowest["rank"], slowest["share"]) == (1, pytest.approx(0.8, rel=1e-4))
    assert "slowest_device" not in named["all_reduce_busbw"]  # of all devices together
    assert "slowest_device" not in named["all_reduce_mean"]
    assert "--full" in named["matmul_bf16_mean"]["ci_reason"]
    assert found.window is None
    assert found.flops is None
    first = found.measurements[0]
    assert first["steady"]
    assert first["devices"] == pytest.approx([flops / 1000e-6, flops / 1250e-6])
    assert found.slow_devices == [{"rank": 1, "share": pytest.approx(0.8)}]


def test_mamf_is_a_mean_of_single_products_and_no_median() -> None:
    times = [100] * 99 + [1100]  # 110 in the mean
    span = span_of("mamf_bf16", 0, [times, times], 1, {**PRODUCT, "cleared_bytes": 2**28})
    named = {entry["name"]: entry for entry in derive(evidence_of(span), FACTS).metrics}
    assert named.keys() == {"mamf_bf16"}
    assert named["mamf_bf16"]["value"] == pytest.approx(2 * 8192 * 4096 * 2048 / 110e-6 / 1e12)
    assert (named["mamf_bf16"]["n"], named["mamf_bf16"]["scope"]) == (100, "device")
    assert "ci_reason" not in named["mamf_bf16"]  # no longer run says more, but further ones do


@pytest.mark.parametrize(("full", "refused"), [(False, True), (True, False)])
def test_only_a_full_run_makes_the_publishers_repeats(full: bool, refused: bool) -> None:
    slower = [100] * 50 + [110] * 50
    evidence = evidence_of(span_of("matmul_bf16", 0, [slower, slower], 500, dict(PRODUCT)))
    named = {entry["name"]: entry for entry in derive(evidence, FACTS._replace(complete=full)).metrics}
    assert "ci95" not in named["matmul_bf16_mean"]
    assert ("ci_reason" in named["matmul_bf16_mean"]) is refused


def test_means_are_of_what_is_published() -> None:
    spans = [
        span_of(name, 20 * at, [[100] * 20] * 2, 1, dict(PRODUCT))
        for at, name in enumerate(("matmul_fp8", "matmul_fp16"))
    ]
    found = {entry["name"] for entry in derive(evidence_of(*spans), FACTS).metrics}
    assert {name for name in found if name.endswith("_mean")} == {"matmul_fp16_mean"}


def test_between_nodes_the_factor_of_one_node_is_published() -> None:
    span = span_of("all_reduce", 0, [[100] * 20] * 4, 1, {"operation": "all_reduce", "bytes": 3000})
    evidence = RecordEvidence(4, 1, [span], {}, {}, {}, [], [])
    named = {entry["name"]: entry["value"] for entry in derive(evidence, FACTS._replace(nodes=2)).metrics}
    rate = 3000 / 100e-6 / 1e9
    assert named["all_reduce_busbw"] == pytest.approx(1.5 * rate)
    assert named["all_reduce_mean"] == pytest.approx(1.0 * rate)
    single = derive(evidence, FACTS._replace(nodes=4)).metrics  # whose factor is 0
    assert {entry["name"] for entry in single} == {"all_reduce_busbw"}


def test_a_large_job_has_the_sums_of_its_repeats() -> None:
    times = [[1000 + rank % 7] for rank in range(300)]
    span = span_of("matmul_bf16", 0, times, 60, PRODUCT)._replace(steps=20)
    whole = RecordEvidence(300, 20, [span], {}, {}, {}, [], []).to_json(packed=True)
    (found,) = derive(read_evidence(whole), FACTS).measurements
    assert found["rate"] == pytest.approx(2 * 8192 * 4096 * 2048 * 60 / 1003e-6, rel=1e-3)
    assert (found["steady"], found["ci95"], found["devices"]) == (True, None, [])


def test_unsteady_repeats_have_no_interval() -> None:
    rising = [1000 + 10 * index for index in range(20)]
    found = derive(evidence_of(span_of("copy", 0, [rising, rising], 1, {"operation": "copy", "bytes": 2**20})), FACTS)
    assert "ci95" not in found.metrics[0]
    assert found.metrics[0]["ci_reason"]
    assert not measured_operations(evidence_of(span_of("copy", 0, [rising[:5]] * 2, 1, PRODUCT)))[0].steady


def same(digest: str, **more: Any) -> dict[str, Any]:
    return {"first": {"sum": digest}, "second": {"sum": digest}, "alike": ("a", "1"), **more}


@pytest.mark.parametrize(
    ("ranks", "changed", "apart"),
    [
        ([same("x"), same("x")], [], []),
        ([same("x"), same("x", second={"sum": "y"})], [1], []),
        ([same("x"), same("x", first={"sum": "y"})], [1], []),
        ([same("x"), same("x", first={"sum": "y"}), same("z")], [1], [0, 2]),
        ([same("x"), same("y"), same("x")], [], [1]),
        ([same("x"), same("y")], [], [0, 1]),
        ([same("x"), same("y", alike=("b", "1"))], [], []),
        ([same("x"), same("x", second={})], [1], []),
    ],
)
def test_which_devices_compute_other_bits(ranks: list[Any], changed: list[int], apart: list[int]) -> None:
    (found,) = compare_results(dict(enumerate(ranks)))
    assert (found["changed"], found["apart"]) == (changed, apart)
