"""Roofs measured before the steps of a run: they follow from its evidence, and tell its machine from its software."""

from __future__ import annotations

import json
from typing import Any

import pytest

from catalogs import CATALOG
from flagbench.records.model import Record
from flagbench.records.read import read_record
from flagbench.report import explanation_page
from flagbench.verdict import Verdict, verify_baseline, verify_claim
from flagbench.verdict.explain import Explanation, explain
from flagbench.verdict.roofs import reachable_matmul
from honest import Pace, honest_record

from .conftest import CASE, CLAIM

TESTED = "records"
PUBLISHED = [claim for claim in CATALOG.claims.values() if claim.case == "roofs"]
SOUND = (1.2e14, 1.33e12, 1.35e11)
"""Of an A100 with TF32: FLOP/s, B/s read and written, B/s of an all-reduce over eight."""


def made(roofs: tuple[float, float, float] | None, slower: float = 1.4, *, steady: bool = True) -> Record:
    raw = honest_record(CLAIM, Pace(slower, roofs=roofs))
    for measurement in raw.get("measurements", []):
        measurement["steady"] = steady
    return read_record(json.dumps(raw).encode())


def explained(record: Record) -> Explanation:
    return explain([record], verify_claim([record], CLAIM, CASE), CASE, (), PUBLISHED)


def test_roofs_are_valid_evidence_of_a_training() -> None:
    record = made(SOUND, 1.0)
    assert verify_claim([record], CLAIM, CASE).verdict is Verdict.REPRODUCED
    rates = {metric.name: metric.value for metric in record.metrics}
    assert rates["matmul_tf32_best"] == pytest.approx(120, rel=1e-4)
    assert rates["memory_bandwidth"] == pytest.approx(1330, rel=1e-3)
    assert rates["all_reduce_busbw"] == pytest.approx(135 * 1.75, rel=1e-3)
    assert rates["mfu_roof"] == pytest.approx(rates["mfu"] * 156 / 120, rel=1e-4)
    assert record.work is not None
    assert record.work.steps == 120


def test_a_roof_that_was_edited_alone_is_invalid() -> None:
    raw = honest_record(CLAIM, Pace(roofs=SOUND))
    raw["measurements"][2]["rate"] *= 1.1
    result = verify_claim([read_record(json.dumps(raw).encode())], CLAIM, CASE)
    assert (result.verdict, {finding.rule for finding in result.findings}) == (Verdict.INVALID, {"numbers"})


@pytest.mark.parametrize(
    ("roofs", "sound", "low"),
    [
        (SOUND, True, []),
        ((0.8e14, 1.33e12, 1.35e11), False, ["matmul_tf32_best"]),
        ((1.2e14, 0.9e12, 1.35e11), False, ["memory_bandwidth_mean"]),
        ((1.2e14, 1.33e12, 0.2e11), False, ["all_reduce_mean"]),
    ],
)
def test_roofs_tell_a_slow_machine_from_slow_software(roofs: Any, sound: bool, low: list[str]) -> None:
    found = explained(made(roofs))
    assert found.machine is not None
    assert found.machine.sound is sound
    assert [roof.metric for roof in found.machine.roofs if (roof.ratio or 0) < 0.9] == low
    assert [roof.source for roof in found.machine.roofs[1:]] == ["roofs/a100-1x8-memory", "roofs/a100-1x8-all-reduce"]
    assert found.machine.reason in explanation_page(found)


def test_low_roofs_that_were_not_steady_decide_nothing() -> None:
    found = explained(made((0.7e14, 1.33e12, 1.35e11), steady=False))
    assert found.machine is not None
    assert found.machine.sound is None


def test_a_baseline_with_roofs_comes_before_published_rows() -> None:
    record, healthy = made((1.0e14, 1.33e12, 1.35e11)), made((1.2e14, 1.33e12, 1.35e11), 1.0)
    healthy = read_record(json.dumps({**healthy.raw, "record_id": "healthy-machine", "run_id": "healthy"}).encode())
    found = explain([record], verify_baseline([record], healthy, CASE), CASE, [healthy], PUBLISHED)
    assert found.machine is not None
    assert found.machine.sound is False
    assert [round(roof.ratio or 0, 2) for roof in found.machine.roofs] == [0.83, 1.0, 1.0]


def test_without_roofs_the_option_is_named() -> None:
    found = explained(made(None))
    assert found.machine is None
    assert "--roofs" in explanation_page(found)


def test_a_device_reaches_what_was_published_of_its_products() -> None:
    """An MI300X was measured at half of its peak, an H100 at two thirds."""
    raw, case = made(None).raw, CATALOG.cases["llama2-70b"]
    raw["conditions"]["precision"] = "bf16"
    for name, expected in (("NVIDIA H100 80GB HBM3", 0.67 * 989.4), ("AMD Instinct MI300X", 0.86 * 668.4)):
        raw["system"]["devices"] = [{**device, "name": name} for device in raw["system"]["devices"]]
        found = reachable_matmul(read_record(json.dumps(raw).encode()), case, PUBLISHED)
        assert (found and found.value) == pytest.approx(expected, rel=1e-3), name
