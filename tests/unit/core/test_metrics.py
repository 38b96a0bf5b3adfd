"""From steps to metrics, by the published definitions, on numbers small enough to check by hand."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from flagbench_cases.record.measured import count_complete_steps
from flagbench_cases.shared.spool import Step
from flagbench_core.evidence import derive, metrics
from flagbench_core.evidence.document import read_evidence
from unit.cases.record.runs import NAN, evidence_of, facts_of, metrics_of, step

BASE = step(1.0, 1.0)._replace(
    **{"data_wait": 0.25, "to_device": 0.25, "host": 0.5, "after": 0.125, "samples": 4.0, "published_samples": 4.0},
    **{"tokens": 512.0, "tokens_useful": 64.0, "flops_executed": 8.0, "flops_useful": 2.0},
)


def steps(*devices: float, **changes: float) -> list[Step]:
    return [BASE._replace(device=device, **changes) for device in devices]


def throughput(
    ranks: dict[int, list[Step]], first: int = 0, *trained: float, unit: str = "samples", **more: Any
) -> dict[str, Any]:
    """`trained`: seconds of training by each rank's clock, of a whole run."""
    return metrics_of(evidence_of(ranks, first, trained, **more), replicas=len(ranks), unit=unit)


def of_steps(**facts: Any) -> dict[str, Any]:
    """The metrics of a run of three steps of which this is known."""
    return metrics_of(evidence_of({0: steps(1.0, 1.0, 1.0)}), **facts)


def test_a_jobs_time_is_the_longest_of_its_ranks_own() -> None:
    # The slow rank changes from step to step: rank 1's 1 + 4 + 2, not the maxima 3 + 4 + 2, which nobody spent.
    ranks = {0: steps(3.0, 1.0, 2.0), 1: steps(1.0, 4.0, 2.0)}
    found = throughput(ranks)
    assert found["p_core"]["value"] == (2 * 4 * 3) / (1.0 + 4.0 + 2.0)
    assert found["p_core"]["unit"] == "samples/s"
    assert found["p_core"]["n"] == 3
    assert found["p_core"]["scope"] == "job"


def micro_batches(noise: float, trend: float = 0.0) -> list[list[int]]:
    """Of five steps, 128 each, half a second and noise; the first is short and the last long, as in a pipeline."""
    draw = random.Random(7)
    places = [100_000, *[500_000] * 126, 900_000]
    return [[round(place * (1 + trend * at + draw.gauss(0, noise))) for place in places] for at in range(5)]


@pytest.mark.parametrize(
    ("noise", "trend", "decided"), [(0.003, 0.0, True), (0.003, 0.02, False)], ids=["steady", "slower and slower"]
)
def test_five_long_steps_are_decided_by_their_micro_batches(noise: float, trend: float, decided: bool) -> None:
    """The rate is that of the steps; without micro-batches, five of them are too few."""
    of_steps = micro_batches(noise, trend)
    evidence = evidence_of({0: steps(*(sum(each) / 1e6 for each in of_steps))})
    (window,) = evidence.spans
    finer = evidence._replace(spans=[window._replace(micro_batches=of_steps)])
    assert read_evidence(json.loads(json.dumps(finer.to_json()))).spans[0].micro_batches == of_steps
    coarse, found = metrics_of(evidence)["p_core"], metrics_of(finer)["p_core"]
    assert (coarse["value"], coarse["n"]) == (found["value"], found["n"]) == (pytest.approx(4 / 64, rel=0.05), 5)
    assert "ci95" not in coarse
    assert ("ci95" in found) is decided
    if decided:
        low, high = found["ci95"]
        assert low < found["value"] < high
        assert 1e-4 < (high - low) / found["value"] < 5e-3


def test_p_core_leaves_the_warm_up_out() -> None:
    ranks = {0: steps(100.0, 100.0, 1.0, 1.0)}
    assert throughput(ranks, first=2)["p_core"]["value"] == 4.0
    assert throughput(ranks, 2, 300.0)["p_core"]["value"] == 4.0


def test_p_core_host_is_rank_0s_clock_and_the_published_count() -> None:
    fast = steps(1.0, 1.0, host=0.5, samples=3.0, published_samples=4.0)
    slow = steps(1.0, 1.0, host=2.0, samples=3.0, published_samples=4.0)
    # The publisher multiplies one rank's batch by the number of ranks and reads one clock.
    assert throughput({0: fast, 1: slow})["p_core_host"]["value"] == (4 * 2 * 2) / (0.5 * 2)
    assert throughput({0: slow, 1: fast})["p_core_host"]["value"] == (4 * 2 * 2) / (2.0 * 2)
    # p_core counts samples as they are.
    assert throughput({0: fast, 1: slow})["p_core"]["value"] == (3 * 2 * 2) / 2.0


def test_p_core_host_spans_what_its_publisher_spans() -> None:
    ranks = {0: steps(1.0, host=9.0) + steps(1.0, 1.0, host=1.0)}
    window, whole = throughput(ranks, first=1), throughput(ranks, 1, 20.0)
    assert window["p_core_host"]["value"] == 8 / 2.0
    assert "the window" in window["p_core_host"]["note"]
    assert whole["p_core_host"]["value"] == 12 / 11.0
    assert "all steps" in whole["p_core_host"]["note"]


def test_p_train_is_all_of_the_slowest_ranks_time() -> None:
    ranks = {
        0: [BASE._replace(data_wait=1.0, to_device=0.5, host=0.5, after=0.25), BASE._replace(data_wait=0.0)],
        1: [BASE._replace(data_wait=0.0, to_device=0.5, host=0.5, after=0.0), BASE._replace(data_wait=2.25)],
    }
    # Rank 1 in both steps: 1.0 and 2.25 + 0.25 + 0.5 + 0.125, and not rank 0's first step.
    assert throughput(ranks)["p_train"]["value"] == 16 / (1.0 + 3.125)


@pytest.mark.parametrize("slow", [0, 1])
def test_the_publishers_p_train_is_rank_0s_clock(slow: int) -> None:
    fast = [BASE._replace(published_samples=5.0, after=7.0)] * 2
    ranks = {slow: [step._replace(data_wait=3.25) for step in fast], 1 - slow: fast}
    found = throughput(ranks, 0, 30.0, 40.0)
    mine = 4.0 if slow == 0 else 1.0  # data wait, hand-over and step
    assert found["p_train_published_count"]["value"] == (5 * 2 * 2) / (2 * mine)
    assert found["p_whole_published_count"]["value"] == (5 * 2 * 2) / 30.0
    assert found["p_whole"]["value"] == 16 / 40.0
    assert found["p_train"]["value"] == 16 / (2 * (4.0 + 7.0))


def test_p_whole_exists_only_for_the_whole_published_run() -> None:
    ranks = {0: steps(1.0, 1.0, 1.0), 1: steps(1.0, 1.0, 1.0)}
    assert "p_whole" not in throughput(ranks)
    whole = throughput(ranks, 2, 6.0, 5.0)
    assert whole["p_whole"]["value"] == 24 / 6.0  # every step, the warm-up too
    assert "ci95" not in whole["p_whole"]


def test_a_rate_carries_its_interval_or_says_why_it_has_none() -> None:
    short = throughput({0: steps(*[1.0, 1.5] * 9)})["p_core"]
    assert short.keys().isdisjoint({"ci95", "ci_method"})
    assert "more steps would decide" in short["ci_reason"]
    long = throughput({0: steps(*[1.0, 1.5] * 60)})["p_core"]
    assert long["ci95"][0] <= long["value"] <= long["ci95"][1]
    assert "within-run" in long["ci_method"]
    assert "ci_reason" not in long
    assert long["stdev"] > 0


@pytest.mark.parametrize(
    ("ranks", "world", "count"),
    [
        ({0: steps(1.0, 1.0, 1.0)}, 1, 3),
        ({0: steps(1.0, 1.0, 1.0)}, 2, 0),  # a rank left nothing: no step is the job's
        ({0: steps(1.0, 1.0, 1.0), 1: steps(1.0)}, 2, 1),
        ({0: steps(1.0, 1.0, NAN, NAN)}, 1, 2),  # the device has not answered
        ({0: steps(1.0, 1.0, NAN), 1: steps(1.0, NAN, NAN)}, 2, 1),
    ],
)
def test_a_step_is_complete_when_every_rank_and_device_is(
    ranks: dict[int, list[Step]], world: int, count: int
) -> None:
    assert count_complete_steps(ranks, world) == count


def test_a_run_that_ended_in_its_warm_up_has_no_window() -> None:
    found = derive(evidence_of({0: steps(1.0, 2.0)}, 2), facts_of(complete=False))
    assert (found.window, found.flops, found.metrics) == (None, None, [])
    assert (found.work["steps"], found.timing["step"], found.ranks[0]["step_median"]) == (2, 3.0, 1.5)


def test_a_window_is_its_slowest_rank_and_the_work_of_all() -> None:
    found = derive(evidence_of({0: steps(1.0, 1.0, 2.0), 1: steps(9.0, 2.0, 1.5)}, 1), facts_of())
    assert found.window == {
        "first_step": 1,
        "rank": 1,
        "steps": 2,
        "samples": 16,
        "seconds": 3.5,
        "host_seconds": 2.25,
        "step_seconds": [2.0, 1.5],
        "step_median": 1.75,
        "step_p5_p95": [1.5, 2.0],
        "drift": None,
        "steady": None,
    }
    assert found.flops == {"executed": 32, "useful": 8, "recomputed": 0, "measured_ceiling": None}


def test_mfu_of_the_published_a100_row() -> None:
    """1942.6 samples/s on 8 devices, 144.96e9 FLOP a sample, 156e12 FLOP/s peak:
    1942.6 * 144.96e9 / 8 / 156e12 = 0.22564 by hand."""
    seconds = 8 * 32 / 1942.6
    work = 32 * 144.96e9
    ranks = {
        rank: steps(*[seconds] * 3, samples=32.0, flops_executed=work, flops_useful=work / 4) for rank in range(8)
    }
    found = metrics_of(evidence_of(ranks, ceilings=[200e12] * 7 + [190e12]), peak=156e12)
    assert found["p_core"]["value"] == pytest.approx(1942.6, rel=1e-5)
    assert found["mfu"]["value"] == pytest.approx(0.2256, abs=5e-5)
    assert found["hfu"]["value"] == found["mfu"]["value"]
    assert found["mfu_useful"]["value"] == pytest.approx(0.2256 / 4, abs=2e-5)
    assert found["mfu_measured"]["value"] == pytest.approx(0.2256 * 156 / 190, abs=5e-5)
    assert {found[name]["unit"] for name in ("mfu", "hfu", "mfu_useful", "mfu_measured")} == {"fraction"}


def test_a_case_that_counts_no_flops_has_no_utilisation() -> None:
    evidence = evidence_of({0: steps(*[0.5] * 3, samples=32.0)}, ceilings=[190e12])
    found = derive(evidence, facts_of(peak=156e12, counted=False))
    assert found.flops is None
    assert not [entry["name"] for entry in found.metrics if entry["name"].startswith(("mfu", "hfu"))]


def test_memory_is_of_the_fullest_device() -> None:
    peaks = {"peak": [2**30, 3 * 2**30], "allocator_peak": [2**29, None]}
    found = throughput({0: steps(1.0), 1: steps(1.0)}, memory=peaks)
    assert found["mem_peak"]["value"] == 3.0
    assert found["mem_peak"]["scope"] == "device"
    assert found["mem_peak"]["n"] == 2
    assert found["allocator_peak"]["value"] == 0.5
    assert found["allocator_peak"]["n"] == 1
    assert "mem_peak" not in throughput({0: steps(1.0)})


def test_the_final_loss_is_the_mean_of_the_tail() -> None:
    def loss(*tail: float) -> dict[str, Any] | None:
        return of_steps(losses=tail).get("loss")

    found = loss(*[9.0] * 10, *[2.0] * metrics.LOSS_TAIL)
    assert found is not None
    assert (found["value"], found["n"]) == (2.0, metrics.LOSS_TAIL)
    assert loss(1.0, NAN) is loss(float("inf")) is loss() is None


def test_accuracy_is_the_last_evaluation_after_training() -> None:
    def evaluation(epoch: int, accuracy: float) -> dict[str, Any]:
        known = {"epoch": epoch, "counted": 872, "extra": []}
        return {**known, "accuracy": accuracy, "published_accuracy": accuracy + 0.01}

    found = of_steps(evaluations=[evaluation(-1, 0.5), evaluation(0, 0.8), evaluation(1, 0.9)])
    assert found["acc"]["value"] == 0.9
    assert found["acc"]["n"] == 872
    assert found["acc_as_published"]["value"] == 0.91
    assert "acc" not in of_steps(evaluations=[evaluation(-1, 0.5)])  # the untrained model's is not the run's


def test_other_numbers_of_an_evaluation_are_metrics() -> None:
    def evaluation(epoch: int, accuracy: float | None, loss: float) -> dict[str, Any]:
        extra = [{"name": "val_loss", "value": loss, "unit": "nats", "note": "of 5 blocks"}]
        return {"epoch": epoch, "accuracy": accuracy, "published_accuracy": None, "counted": 5, "extra": extra}

    found = of_steps(evaluations=[evaluation(0, 0.25, 2.0), evaluation(1, None, 1.5)])
    # Each from the last evaluation that asked for it.
    assert found["val_loss"]["value"] == 1.5
    assert found["acc"]["value"] == 0.25
    assert "acc_as_published" not in found


def test_a_case_of_tokens_is_measured_in_tokens() -> None:
    ranks = {0: steps(1.0, 2.0, tokens=10.0), 1: steps(2.0, 2.0, tokens=10.0, data_wait=1.25)}
    found = throughput(ranks, 0, 4.0, 5.0, unit="tokens")
    assert found["p_core"]["value"] == 40 / 4.0
    assert found["p_core"]["unit"] == "tokens/s"
    per_device = found["tokens_per_second_per_device"]
    assert per_device["value"] == pytest.approx(found["p_train"]["value"] / 2)
    published = found["tokens_per_second_per_device_host"]
    assert published["value"] == 10 * 2 / 2.0  # rank 0's data wait, hand-over and step: 1 s each
    for entry in (per_device, published):
        assert (entry["unit"], entry["scope"]) == ("tokens/s", "device")
    assert found["p_whole"]["value"] == 40 / 5.0
    assert not [name for name in found if name.endswith("published_count")]


def test_what_is_recomputed_counts_in_hfu_alone() -> None:
    found = metrics_of(evidence_of({0: steps(1.0, flops_recomputed=4.0)}, ceilings=[32.0]), peak=16.0)
    assert (found["mfu"]["value"], found["hfu"]["value"]) == (0.5, 0.75)
    assert (found["mfu_measured"]["value"], found["hfu_measured"]["value"]) == (0.25, 0.375)


def test_the_publishers_own_utilisation() -> None:
    """4017 tokens/s of one device, 2 x 7e9 FLOP a token, 156e12 FLOP/s: 36.05 % by hand, published 36.1."""
    formula = {"id": "f/v1", "metric": "p_core", "flops_per_unit": 1.4e10, "peak": 156e12, "peaks": {"tf32": 78e12}}
    of_device = {**formula, "metric": "tokens_per_second_per_device"}
    ranks = {
        rank: steps(*[1.0] * 120, data_wait=0.0, to_device=0.0, after=0.0, host=1.0, tokens=4017.0) for rank in (0, 1)
    }

    def published(used: dict[str, Any] | None, precision: str = "bf16", **changes: Any) -> dict[str, Any]:
        evidence = evidence_of(ranks)
        found = metrics_of(evidence, replicas=2, unit="tokens", published=used, precision=precision, **changes)
        return found.get("mfu_published_formula", {})

    assert published(formula)["value"] == published(of_device)["value"] == pytest.approx(0.3605, rel=1e-3)
    assert published(formula)["ci95"] == [pytest.approx(0.3605, rel=1e-3)] * 2
    assert published(formula, "tf32")["value"] == pytest.approx(2 * 0.3605, rel=1e-3)
    assert published(None) == published({**formula, "metric": "p_whole"}) == {}
