"""Each verdict is reached by a replayed record, and says the numbers or the conditions it rests on."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flagbench.catalog.model import Case, Catalog, Claim
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.record.model import Check, Quality, Record, Status
from flagbench.verify import Verdict, choose_claim, verify_baseline, verify_claim
from flagbench.verify.sanity import config_digest

REPLAYS = Path(__file__).parent / "replays"
HOST_METRIC = 4  # the place of p_core_host in the base record

# What each replay changes in a100-1x8.json, by path; the record_id is its name.
EDITS: dict[str, dict[tuple[str | int, ...], Any]] = {
    "a100-1x8-below": {
        ("metrics", HOST_METRIC, "value"): 1510.0,
        ("metrics", HOST_METRIC, "ci95"): [1490.0, 1530.0],
    },
    "a100-1x8-above": {
        ("metrics", HOST_METRIC, "value"): 2300.0,
        ("metrics", HOST_METRIC, "ci95"): [2280.0, 2320.0],
    },
    "a100-1x8-inconclusive": {
        ("metrics", HOST_METRIC, "value"): 1880.0,
        ("metrics", HOST_METRIC, "ci95"): [1810.0, 1950.0],
    },
    "a100-1x8-80gb": {("conditions", "device_model"): "NVIDIA A100-SXM4-80GB"},
    "a100-1x8-failed-check": {
        ("quality", "checks", 0, "ok"): False,
        ("quality", "checks", 0, "detail"): "asked for tf32; a matrix product ran in fp32",
    },
    "a100-1x8-cuda11.8": {("conditions", "torch"): "2.6.0+cu118", ("conditions", "cuda"): "11.8"},
    "a100-1x8-partial-batches": {
        ("work",): {
            "unit": "samples",
            "steps": 20,
            "samples_executed": 640,
            "samples_published_count": 5120,
        },
    },
    "a100-1x8-unsteady": {
        ("window",): {
            "first_step": 20,
            "steps": 200,
            "samples": 51200,
            "seconds": 26.4,
            "steady": False,
            "drift": 0.54,
        },
    },
    "a100-1x8-throttled": {
        ("telemetry",): {
            "devices": [
                {"index": 0, "throttle_seconds": {"gpu_idle": 9.0, "hw_thermal_slowdown": 30.0, "sw_power_cap": 0.4}},
                {"index": 1, "throttle_seconds": {"hw_thermal_slowdown": 2.0}},
            ],
        },
    },
    "a100-1x8-tenant": {
        ("telemetry",): {"devices": [{"index": 0}, {"index": 1, "foreign_processes": 2}]},
    },
}


@pytest.mark.parametrize("name", EDITS)
def test_a_replay_is_the_base_record_with_its_edits_and_nothing_else(name: str) -> None:
    expected = json.loads((REPLAYS / "a100-1x8.json").read_text())
    for path, value in {("record_id",): f"fixture-{name}", **EDITS[name]}.items():
        place = expected
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
    assert json.loads((REPLAYS / f"{name}.json").read_text()) == expected


@pytest.mark.parametrize(
    ("name", "verdict", "code", "reason"),
    [
        (
            "a100-1x8",
            Verdict.REPRODUCED,
            0,
            "p_core_host 1940 samples/s [1930, 1950], claim 1942.6: ratio 0.999 [0.994, 1.004], allowed 0.95 to 1.10",
        ),
        (
            "a100-1x8-below",
            Verdict.BELOW,
            9,
            "p_core_host 1510 samples/s [1490, 1530], claim 1942.6: ratio 0.777 [0.767, 0.788], allowed 0.95 to 1.10",
        ),
        (
            "a100-1x8-above",
            Verdict.ABOVE,
            0,
            "p_core_host 2300 samples/s [2280, 2320], claim 1942.6: ratio 1.184 [1.174, 1.194], allowed 0.95 to 1.10",
        ),
        (
            "a100-1x8-inconclusive",
            Verdict.INCONCLUSIVE,
            11,
            "p_core_host 1880 samples/s [1810, 1950], claim 1942.6: "
            "ratio 0.968 [0.932, 1.004], allowed 0.95 to 1.10; the interval crosses a limit",
        ),
        (
            "a100-1x8-80gb",
            Verdict.NOT_COMPARABLE,
            10,
            "device_model is NVIDIA A100-SXM4-80GB here, NVIDIA A100-SXM4-40GB published",
        ),
        (
            "a100-1x8-failed-check",
            Verdict.INVALID,
            12,
            "record fixture-a100-1x8-failed-check: check precision failed: "
            "asked for tf32; a matrix product ran in fp32",
        ),
        (
            "a100-1x8-partial-batches",
            Verdict.INVALID,
            12,
            "record fixture-a100-1x8-partial-batches: p_core_host credits full batches, 5,120 samples in all, and "
            "the run trained on 640; give a training set of at least a hundred steps",
        ),
    ],
)
def test_every_verdict_is_reached_and_says_why(
    replay: Callable[[str], Record],
    case: Case,
    claim: Claim,
    name: str,
    verdict: Verdict,
    code: int,
    reason: str,
) -> None:
    result = verify_claim([replay(name)], claim, case)
    assert result.verdict is verdict
    assert result.verdict.exit_code == code
    assert result.reason == reason
    assert result.qualifiers == ()


def test_other_software_on_the_same_hardware_is_a_verdict_with_a_qualifier(
    replay: Callable[[str], Record], case: Case, claim: Claim
) -> None:
    result = verify_claim([replay("a100-1x8-cuda11.8")], claim, case)
    assert result.verdict is Verdict.REPRODUCED
    assert result.qualifiers == ("software differs",)
    assert result.conclusion.startswith("REPRODUCED (software differs): ")
    assert [c.name for c in result.differing] == ["torch", "cuda"]


def test_the_published_sets_own_last_batch_may_be_partial(
    base: Record, edit: Callable[..., Record], case: Case, claim: Claim
) -> None:
    # An epoch of SST-2 on eight devices: 67,349 sentences, credited as 264 steps of 256.
    work = {"unit": "samples", "steps": 264, "samples_executed": 67349, "samples_published_count": 67584}
    assert verify_claim([edit(base, raw={**base.raw, "work": work})], claim, case).verdict is Verdict.REPRODUCED


def test_partial_batches_forbid_no_comparison_of_samples_as_they_are(
    replay: Callable[[str], Record], case: Case, base: Record
) -> None:
    assert verify_baseline([replay("a100-1x8-partial-batches")], base, case).verdict is Verdict.REPRODUCED


def test_a_tiny_run_on_a_processor_is_not_comparable_and_says_what_differs(
    replay: Callable[[str], Record], case: Case, claim: Claim
) -> None:
    result = verify_claim([replay("cpu-tiny")], claim, case)
    assert result.verdict is Verdict.NOT_COMPARABLE
    gate = result.metric("p_core")
    assert gate is not None
    # Another model's speed over this one's is no fraction of anything.
    assert gate.ratio is None
    assert gate.difference is None
    for name in ("device_model", "devices", "model", "sequence_length", "precision"):
        assert f"{name} is " in result.reason
    # Software qualifies a verdict on speed, and there is none.
    assert result.qualifiers == ()
    # p_core depends on none of these, so they are no part of its reason.
    for name in ("weights", "stop_rule", "torch"):
        assert f"{name} is " not in result.reason


def test_a_published_p_core_is_held_by_the_publishers_own_clock(
    base: Record, edit: Callable[..., Record], case: Case, claim: Claim
) -> None:
    gate = verify_claim([base], claim, case).metric("p_core")
    assert gate is not None
    assert gate.held_by == "p_core_host"
    without = verify_claim([edit(base, without=("p_core_host",))], claim, case).metric("p_core")
    assert without is not None
    assert without.held_by == "p_core"
    assert "p_core itself is held, the record has no p_core_host" in without.reason


def test_metrics_that_are_no_speed_have_no_verdict(base: Record, case: Case, claim: Claim) -> None:
    result = verify_claim([base], claim, case)
    acc, memory = result.metric("acc"), result.metric("mem_peak")
    assert acc is not None
    assert memory is not None
    assert (acc.verdict, acc.comparable, acc.ratio) == (None, True, None)
    assert acc.difference == pytest.approx(-0.002)
    assert (memory.verdict, memory.comparable) == (None, True)
    assert memory.ratio is not None
    assert memory.ratio.value == pytest.approx(1.0)


def test_a_shorter_time_is_a_higher_ratio(
    base: Record, edit: Callable[..., Record], case: Case, claim: Claim
) -> None:
    fast = edit(base, metrics={"e2e_time": {"value": 180.5, "ci95": (180.0, 181.0)}})
    line = verify_claim([fast], claim, case).metric("e2e_time")
    assert line is not None
    assert line.ratio is not None
    assert line.ratio.value == pytest.approx(2.0)
    assert line.verdict is Verdict.ABOVE


def test_a_metric_that_was_not_measured_says_so_and_changes_nothing_else(
    base: Record, edit: Callable[..., Record], case: Case, claim: Claim
) -> None:
    result = verify_claim([edit(base, without=("p_whole",))], claim, case)
    line = result.metric("p_whole")
    assert line is not None
    assert (line.verdict, line.measured, line.reason) == (None, None, "p_whole was not measured")
    assert result.verdict is Verdict.REPRODUCED


def test_another_unit_or_scope_is_not_comparable(
    base: Record, edit: Callable[..., Record], case: Case, claim: Claim
) -> None:
    result = verify_claim([edit(base, metrics={"p_core_host": {"scope": "device"}})], claim, case)
    assert result.verdict is Verdict.NOT_COMPARABLE
    assert result.reason == "p_core_host is in samples/s per device here, in samples/s per job published"


def test_a_claim_without_the_gate_metric_is_not_comparable_and_says_what_can_be_held_instead(
    base: Record, edit: Callable[..., Record], case: Case, claim: Claim
) -> None:
    acc, memory = (next(m for m in claim.metrics if m.name == name) for name in ("acc", "mem_peak"))
    slow = replace(claim, metrics=(acc, memory))
    result = verify_claim([base], slow, case)
    assert result.verdict is Verdict.NOT_COMPARABLE
    no_speed = "the claim publishes no p_core, so there is no verdict on speed"
    assert result.reason == f"{no_speed}; comparable here: acc, mem_peak"
    synthetic = verify_claim([edit(base, conditions={"data": "synthetic"})], slow, case)
    assert synthetic.reason == (
        f"{no_speed}; comparable here: mem_peak; acc cannot be compared: data is synthetic here, sst2 published"
    )


def test_anomalies_of_what_was_compared_are_kept(base: Record, case: Case, claim: Claim) -> None:
    assert [a.id for a in verify_claim([base], claim, case).anomalies] == ["epochs", "image-dependent"]


FAILED = Status("failed", "train", "a rank ran out of memory", 5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"status": FAILED}, "the run ended as failed in train: a rank ran out of memory"),
        (
            {"quality": Quality((Check("loss_finite", False, "step 7 of 200"),))},
            "check loss_finite failed: step 7 of 200",
        ),
        ({"without": ("p_core", "p_core_host")}, "the gate metric p_core was not measured"),
        ({"metrics": {"p_core_host": {"value": float("nan")}}}, "metric p_core_host is not a finite"),
        ({"metrics": {"acc": {"value": float("inf")}}}, "metric acc is not a finite"),
        ({"metrics": {"p_core": {"ci95": (2.0, 1.0)}}}, "metric p_core is not a finite number within its interval"),
        ({"metrics": {"p_core_host": {"value": 500.0}}}, "p_core_host is not a finite number within its interval"),
        ({"metrics": {"p_core_host": {"value": 0.0, "ci95": None}}}, "the gate metric p_core_host is 0.0"),
        ({"config_digest": "sha256:" + "0" * 64}, "config_digest is sha256:000"),
        ({"config_digest": None}, "it has no resolved configuration"),
    ],
)
def test_an_invalid_record_is_invalid_before_it_is_anything_else(
    base: Record, edit: Callable[..., Record], case: Case, claim: Claim, change: dict[str, Any], reason: str
) -> None:
    # Not comparable as well: sanity is asked first.
    record = edit(base, conditions={"device_model": "another"}, **change)
    result = verify_claim([record], claim, case)
    assert result.verdict is Verdict.INVALID
    assert reason in result.reason
    assert result.metrics == ()
    json.dumps(result.to_dict(), allow_nan=False)


def test_an_interval_may_miss_its_value_by_rounding(
    base: Record, edit: Callable[..., Record], case: Case, claim: Claim
) -> None:
    value = 1940.0
    equal = edit(base, metrics={"p_core_host": {"value": value, "ci95": (math.nextafter(value, 2e3), value + 1)}})
    assert verify_claim([equal], claim, case).verdict is Verdict.REPRODUCED


def test_the_digest_is_of_canonical_json() -> None:
    # sha256 of {"a":"\u00e9","b":[1,0.5]} in UTF-8, by sha256sum.
    expected = "sha256:487df58a5a8d7b2df6479781692d59ed51086e4f765f37f8f4fc34703e92ba27"
    assert config_digest({"b": [1, 0.5], "a": "\u00e9"}) == expected
    with pytest.raises(ValueError):  # noqa: PT011  # json's own
        config_digest({"a": float("nan")})


def test_the_nearest_claim_is_chosen_and_the_first_of_equals(
    catalog: Catalog, base: Record, edit: Callable[..., Record], case: Case, claim: Claim
) -> None:
    claims = list(catalog.claims.values())
    assert choose_claim(base, case, claims) is claim
    single = edit(base, conditions={"devices": 1, "batch_size": 96, "learning_rate": 0.00015})
    assert choose_claim(single, case, claims).id == "distilbert/a100-1x1-fp32-bs96"
    twin = replace(claim, id="distilbert/twin")
    assert choose_claim(base, case, [twin, claim]) is twin
    with pytest.raises(FlagbenchError) as caught:
        choose_claim(base, case, [])
    assert "distilbert" in caught.value.message


def test_a_claim_of_another_case_is_a_usage_error(base: Record, case: Case, claim: Claim) -> None:
    with pytest.raises(FlagbenchError) as caught:
        verify_claim([base], replace(claim, case="glm"), case)
    assert "glm" in caught.value.message
    assert caught.value.code is ExitCode.USAGE


def test_a_baseline_of_equal_conditions_is_held_like_a_claim(
    base: Record, edit: Callable[..., Record], case: Case
) -> None:
    slower = edit(
        base,
        record_id="fixture-slower",
        metrics={
            "p_core": {"value": 1536.0, "ci95": (1530.0, 1540.0)},
            "p_train": {"value": 1500.0, "ci95": (1490.0, 1510.0)},
            "p_whole": {"value": 1400.0},
        },
    )
    result = verify_baseline([slower], base, case)
    assert result.verdict is Verdict.BELOW
    assert result.against.kind.value == "baseline"
    assert "baseline 1920 [1910, 1930]" in result.reason
    gate = result.metric("p_core")
    assert gate is not None
    assert gate.ratio is not None
    # The conservative interval: lowest over highest, highest over lowest.
    assert gate.ratio.low == pytest.approx(1530 / 1930)
    assert gate.ratio.high == pytest.approx(1540 / 1910)


def test_a_baseline_differs_by_condition_or_digest_and_only_qualified_by_software(
    base: Record, edit: Callable[..., Record], case: Case
) -> None:
    def against(**change: Any) -> Any:
        return verify_baseline([edit(base, record_id="fixture-other", **change)], base, case)

    seed = against(conditions={"seed": 1})
    assert seed.verdict is Verdict.NOT_COMPARABLE
    assert seed.reason == "seed is 1 here, 0 in the baseline"
    config = {**base.raw["config"], "nodes": 2}
    other = against(raw={**base.raw, "config": config}, config_digest=config_digest(config))
    assert other.verdict is Verdict.NOT_COMPARABLE
    assert other.reason.startswith("config_digest is sha256:")
    newer = against(conditions={"torch": "2.6.0"})
    assert (newer.verdict, newer.qualifiers) == (Verdict.REPRODUCED, ("software differs",))


def test_a_record_is_no_baseline_of_itself(base: Record, case: Case) -> None:
    with pytest.raises(FlagbenchError) as caught:
        verify_baseline([base], base, case)
    assert base.record_id in caught.value.message
    assert caught.value.code is ExitCode.USAGE


def test_an_invalid_baseline_is_refused(base: Record, edit: Callable[..., Record], case: Case) -> None:
    with pytest.raises(FlagbenchError) as caught:
        verify_baseline([base], edit(base, record_id="fixture-failed", status=FAILED), case)
    assert "fixture-failed" in caught.value.message
    assert caught.value.code is ExitCode.DATA
