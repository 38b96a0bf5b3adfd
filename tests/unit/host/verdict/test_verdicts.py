"""Each verdict is reached by a replayed record, and says the numbers or the conditions it rests on."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from flagbench.errors import FlagbenchError
from flagbench.records.model import Check, Quality, Record, Status, Work
from flagbench.verdict import Verdict, VerifyResult, verify_baseline, verify_claim
from flagbench.verdict.judge import Terms
from flagbench.verdict.stats.between import Prior
from flagbench_core.config import digest as config_digest
from flagbench_core.exit_codes import ExitCode
from honest import honest_record

from .conftest import BASE, CASE, CATALOG, CLAIM, edit, held, line, read, replay

FAILED = Status("failed", "train", "a rank ran out of memory", 5)


def test_batches_of_the_published_set_may_be_partial() -> None:
    # An epoch of SST-2 on eight devices: 67,349 sentences, credited as 264 steps of 256.
    work = Work("samples", 264, samples_executed=67349, samples_published_count=67584)
    assert held(edit(work=work)).verdict is Verdict.REPRODUCED
    # Of more of them, what counts samples as they are can still be compared.
    partial = replay("a100-1x8-partial-batches")
    assert line(held(partial), "p_core").ratio is None
    assert line(verify_baseline([partial], BASE, CASE), "p_core").ratio.value == pytest.approx(1.0)


def test_a_tiny_run_on_a_processor_says_what_differs() -> None:
    result = held(replay("cpu-tiny"))
    assert (result.verdict, result.qualifiers) == (Verdict.NOT_COMPARABLE, ())
    # Another model's speed over this one's is no fraction of anything.
    gate = line(result, "p_core")
    assert (gate.ratio, gate.difference) == (None, None)
    named = {clause.split()[0] for clause in result.reason.split("; ")}
    assert {"device_model", "devices", "model", "sequence_length", "precision"} <= named
    assert named.isdisjoint({"weights", "stop_rule", "torch"}), "p_core depends on none of these"


def test_a_published_p_core_is_held_by_the_publishers_own_clock() -> None:
    assert line(held(BASE), "p_core").held_by == "p_core_host"
    without = line(held(edit(without=("p_core_host",))), "p_core")
    assert (without.held_by, "no p_core_host" in without.reason) == ("p_core", True)


def test_a_published_utilisation_is_held_by_its_own_formula() -> None:
    claim = CATALOG.claims["llama2-7b-lora/a100-1x1-fp16-bs4"]
    mfu = line(held(read(honest_record(claim)), claim=claim), "mfu")
    assert (mfu.held_by, mfu.verdict, mfu.expected.value) == ("mfu_published_formula", Verdict.REPRODUCED, 0.361)


def test_records_with_different_gate_metrics_are_inconclusive() -> None:
    result = held(edit(without=("p_core",)), edit(record_id="fixture-other", without=("p_core_host",)))
    assert (result.verdict, "p_core" in result.reason) == (Verdict.INCONCLUSIVE, True)


def test_metrics_that_are_no_speed_have_no_verdict() -> None:
    acc, memory = (line(held(BASE), name) for name in ("acc", "mem_peak"))
    assert (acc.verdict, acc.comparable, acc.ratio) == (None, True, None)
    assert acc.difference == pytest.approx(-0.002)
    assert (memory.verdict, memory.comparable, memory.ratio.value) == (None, True, pytest.approx(1.0))


def test_a_shorter_time_is_a_higher_ratio() -> None:
    time = line(held(edit(metrics={"e2e_time": {"value": 180.5, "ci95": (180.0, 181.0)}})), "e2e_time")
    assert (time.ratio.value, time.verdict) == (pytest.approx(2.0), Verdict.ABOVE)


def test_a_metric_that_was_not_measured_changes_nothing_else() -> None:
    result = held(edit(without=("p_whole",)))
    whole = line(result, "p_whole")
    assert (whole.verdict, whole.measured, "p_whole" in whole.reason) == (None, None, True)
    assert result.verdict is Verdict.REPRODUCED


def test_another_unit_or_scope_is_not_comparable() -> None:
    result = held(edit(metrics={"p_core_host": {"scope": "device"}}))
    assert result.verdict is Verdict.NOT_COMPARABLE
    assert all(shown in result.reason for shown in ("p_core_host", "samples/s per device", "samples/s per job"))


def test_a_claim_without_the_gate_metric_says_what_can_be_held() -> None:
    slow = replace(CLAIM, metrics=tuple(m for m in CLAIM.metrics if m.name in ("acc", "mem_peak")))
    result = held(BASE, claim=slow)
    assert result.verdict is Verdict.NOT_COMPARABLE
    assert result.reason.endswith("comparable here: acc, mem_peak")
    other = held(edit(conditions={"data": "synthetic"}), claim=slow).reason
    assert "comparable here: mem_peak; acc" in other
    assert other.endswith("data is synthetic here, sst2 published")


def test_anomalies_of_what_was_compared_are_kept() -> None:
    assert [anomaly.id for anomaly in held(BASE).anomalies] == ["epochs", "image-dependent"]
    fewer = replace(CLAIM, metrics=tuple(m for m in CLAIM.metrics if m.name != "e2e_time"))
    assert [anomaly.id for anomaly in held(BASE, claim=fewer).anomalies] == ["image-dependent"]


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"status": FAILED}, ("failed", "train", "a rank ran out of memory")),
        ({"quality": Quality((Check("loss_finite", False, "step 7 of 200"),))}, ("loss_finite", "step 7 of 200")),
        ({"config_digest": "sha256:" + "0" * 64}, ("sha256:000", BASE.config_digest)),
        ({"config_digest": None}, ("configuration",)),
    ],
)
def test_an_invalid_record_is_invalid_before_anything_else(change: dict[str, Any], shown: tuple[str, ...]) -> None:
    # Not comparable as well.
    result = held(edit(conditions={"device_model": "another"}, **change))
    assert result.verdict is Verdict.INVALID
    assert [each for each in shown if each not in result.reason] == []
    assert (result.metrics, result.anomalies) == ((), ())
    json.dumps(result.to_dict(), allow_nan=False)


def test_an_interval_may_miss_its_value_by_rounding() -> None:
    equal = edit(metrics={"p_core_host": {"value": 1940.0, "ci95": (math.nextafter(1940.0, 2e3), 1941.0)}})
    assert held(equal).verdict is Verdict.REPRODUCED


def test_the_digest_is_of_canonical_json() -> None:
    # sha256 of {"a":"\u00e9","b":[1,0.5]} in UTF-8, by sha256sum.
    expected = "sha256:487df58a5a8d7b2df6479781692d59ed51086e4f765f37f8f4fc34703e92ba27"
    assert config_digest({"b": [1, 0.5], "a": "\u00e9"}) == expected


def test_a_claim_of_another_case_is_a_usage_error() -> None:
    with pytest.raises(FlagbenchError, match="glm") as caught:
        verify_claim([BASE], replace(CLAIM, case="glm"), CASE)
    assert caught.value.code is ExitCode.USAGE


# Against a baseline


def side(*values: float, name: str = "", day: int = 1) -> list[Record]:
    """Runs of one session whose gate metric, p_core, has these values, each with an interval of 0.2 % in the run."""
    date = f"2026-05-{day:02}T12:30:00Z"
    metrics = [{"p_core": {"value": v, "ci95": (v * 0.998, v * 1.002)}} for v in values]
    return [edit(record_id=f"fixture-{name}{k}", created_at=date, metrics=m) for k, m in enumerate(metrics)]


FIVE = (1914.0, 1917.0, 1920.0, 1923.0, 1926.0)


@pytest.mark.parametrize(
    ("factor", "runs", "within", "verdict", "code"),
    [
        (0.97, 5, 0.02, Verdict.SLOWER, ExitCode.BELOW),
        (1.03, 5, 0.02, Verdict.FASTER, ExitCode.OK),
        (1.0, 5, 0.02, Verdict.SAME, ExitCode.OK),
        # Certainly slower, and certainly by less than 2 %: the same.
        (0.99, 5, 0.02, Verdict.SAME, ExitCode.OK),
        (0.99, 5, 0.005, Verdict.SLOWER, ExitCode.BELOW),
        (1.0, 1, 0.02, Verdict.INCONCLUSIVE, ExitCode.INCONCLUSIVE),
        (1.2, 1, 0.02, Verdict.FASTER, ExitCode.OK),
    ],
)
def test_a_baseline_says_whether_a_machine_became_slower(
    factor: float, runs: int, within: float, verdict: Verdict, code: ExitCode
) -> None:
    here, there = side(*[factor * v for v in FIVE[:runs]], name="here-"), side(*FIVE[:runs], name="there-")
    result = verify_baseline(here, there, CASE, terms=Terms(within=within))
    assert (result.verdict, result.verdict.exit_code) == (verdict, code)
    assert line(result, "p_core").ratio.value == pytest.approx(factor)
    assert ("one run" in result.reason) == (runs == 1)


@pytest.mark.parametrize("runs", [2, 5])
def test_sides_of_two_days_differ_by_what_sessions_do(runs: int) -> None:
    here, there = side(*[0.975] * runs, name="here-"), side(*[1.0] * runs, name="there-")
    assert verify_baseline(here, there, CASE).verdict is Verdict.SLOWER
    another_day = verify_baseline(here, side(*[1.0] * runs, name="there-", day=2), CASE)
    assert another_day.verdict is Verdict.INCONCLUSIVE
    assert "in one session" in another_day.reason
    # 1.96 x 1 % x sqrt(2): a day's part of either side.
    assert line(another_day, "p_core").ratio.ci95[1] == pytest.approx(0.975 * math.exp(0.027718), rel=1e-5)


@pytest.mark.parametrize(
    ("factor", "days", "verdict"),
    [
        # One day on each side: +-2.8 %, by the 1 % that sessions are assumed to differ by.
        (0.966, [0.98], Verdict.SLOWER),
        # Five days that spread by 2 %: t(8) = 2.306 times 2 % times sqrt(2/5) = 2.9 %.
        (0.975, [0.97, 0.99, 1.0, 1.01, 1.03], Verdict.INCONCLUSIVE),
        (0.966, [0.97, 0.99, 1.0, 1.01, 1.03], Verdict.SLOWER),
        (1.002, [0.995, 0.998, 1.0, 1.002, 1.005], Verdict.SAME),
    ],
)
def test_sides_of_several_days_differ_by_what_these_show(factor: float, days: list[float], verdict: Verdict) -> None:
    here: list[Record] = []
    there: list[Record] = []
    for number, day in enumerate(days):
        here += side(*[factor * day * run for run in (0.999, 1.0, 1.001)], name=f"here-{number}-", day=11 + number)
        there += side(*[day * run for run in (0.999, 1.0, 1.001)], name=f"there-{number}-", day=1 + number)
    result = verify_baseline(here, there, CASE)
    gate = line(result, "p_core")
    assert (result.verdict, gate.ratio.value) == (verdict, pytest.approx(factor))


def test_a_shorter_time_is_faster_than_a_baseline_too() -> None:
    def timed(name: str, *seconds: float) -> list[Record]:
        times = enumerate(seconds)
        return [edit(record_id=f"fixture-{name}{k}", metrics={"e2e_time": {"value": s}}) for k, s in times]

    result = verify_baseline(timed("a", 90, 91, 92, 93, 94), timed("b", 98, 99, 100, 101, 102), CASE)
    time = line(result, "e2e_time")
    assert (time.verdict, time.ratio.value) == (Verdict.FASTER, pytest.approx(1.087, abs=1e-3))


def test_the_history_of_a_store_replaces_the_assumed_spread() -> None:
    sides = side(0.97 * 1920, name="here-"), side(1920.0, name="there-")
    assert verify_baseline(*sides, CASE).verdict is Verdict.INCONCLUSIVE
    terms = Terms(priors={"p_core": Prior(0.004, 20.0, "20 deviations of earlier runs")})
    assert verify_baseline(*sides, CASE, terms=terms).verdict is Verdict.SLOWER


def test_a_baseline_differs_by_condition_or_configuration() -> None:
    def against_base(**changes: Any) -> VerifyResult:
        return verify_baseline([edit(record_id="fixture-other", **changes)], BASE, CASE)

    seed = against_base(conditions={"seed": 1})
    assert (seed.verdict, seed.reason) == (Verdict.NOT_COMPARABLE, "seed is 1 here, 0 in the baseline")
    config = {**BASE.config, "nodes": 2}
    other = against_base(config=config, config_digest=config_digest(config))
    assert (other.verdict, other.reason.split()[0]) == (Verdict.NOT_COMPARABLE, "config_digest")
    newer = against_base(conditions={"torch": "2.6.0"})
    assert (newer.verdict, newer.qualifiers) == (Verdict.INCONCLUSIVE, ("software differs",))


@pytest.mark.parametrize(
    ("changes", "code"),
    [({}, ExitCode.USAGE), ({"record_id": "fixture-failed", "status": FAILED}, ExitCode.DATA)],
    ids=["itself", "a failed run"],
)
def test_what_is_no_baseline_is_refused(changes: dict[str, Any], code: ExitCode) -> None:
    baseline = edit(**changes)
    with pytest.raises(FlagbenchError, match=baseline.record_id) as caught:
        verify_baseline([BASE], baseline, CASE)
    assert caught.value.code is code
