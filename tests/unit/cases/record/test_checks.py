"""The checks that make a run's numbers meaningful: what does not hold is found, and such a run is no success."""

from __future__ import annotations

from typing import Any

import pytest

from flagbench_cases.record.evidence import OK, Evidence, Outcome
from unit.cases.record.runs import (
    FAILED,
    INF,
    NAN,
    TRAINING,
    WARMUP,
    WINDOW,
    WINDOW_OF_30,
    checks_of,
    evidence,
    fact_of,
    record_of,
    resolved,
    state_of,
    with_device_time,
    without,
)

pytestmark = pytest.mark.image


def checks(found: Evidence, configuration: dict[str, Any] = WINDOW_OF_30, outcome: Outcome = OK) -> dict[str, bool]:
    return checks_of(record_of(found, configuration, outcome))


def test_a_good_run_passes_every_check() -> None:
    assert checks(evidence()) == dict.fromkeys(TRAINING, True)
    assert checks(evidence(sums=(1e6, 1e6 + 0.5)))["ranks_in_step"]


def one_rank_in_tf32() -> Evidence:
    found = evidence()
    fact_of(found, "precision", rank=1)["executed"] = "tf32"
    return found


def one_step_fewer_on_rank_1() -> Evidence:
    found = evidence()
    found.steps[1].pop()
    return found


@pytest.mark.parametrize(
    ("check", "found"),
    [
        *(("precision", evidence(executed=executed)) for executed in ("tf32", "bf16", "wrong")),
        ("precision", one_rank_in_tf32()),
        ("precision", without(evidence(), "precision")),
        *(("ranks_in_step", evidence(sums=sums)) for sums in ((10.0, 10.1), (10.0, NAN), (NAN, 10.0), (NAN, NAN))),
        ("ranks_in_step", evidence(sums=(INF, INF))),
        *(("parameters_finite", evidence(sums=sums)) for sums in ((NAN, NAN), (10.0, INF))),
        ("rates_in_order", with_device_time(0.33)),
        ("rates_in_order", evidence(train=0.31 * WINDOW - 0.5)),  # all steps lie within training
        *(("steps", evidence([0.5] * steps)) for steps in (WINDOW - 1, WINDOW + 1)),
        ("steps", one_step_fewer_on_rank_1()),
    ],
)
def test_what_does_not_hold_is_found(check: str, found: Evidence) -> None:
    assert checks(found)[check] is False


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_loss_that_is_no_number_is_found_and_left_out(bad: float) -> None:
    made = record_of(evidence([0.5] * 12 + [bad] + [0.5] * (WINDOW - 13)))
    (check,) = (c for c in made["quality"]["checks"] if c["name"] == "loss_finite")
    assert (check["ok"], check["detail"]) == (False, "not finite at step 12")
    assert 12 not in [point[0] for point in made["quality"]["loss_curve"]]
    assert "loss" not in {metric["name"] for metric in made["metrics"]}


def skipped_in_fp16(*steps: int, losses: list[float] | None = None) -> dict[str, Any]:
    """The record of a run in fp16 whose loss scaler skipped these steps, as both ranks say."""
    found = evidence(losses or [0.5] * WINDOW, executed="fp16")
    found.facts.extend(
        {"kind": "skipped", "rank": rank, "time": 1.0, "step": step} for rank in (0, 1) for step in steps
    )
    return record_of(found, {**WINDOW_OF_30, "precision": "fp16"})


def test_steps_that_the_loss_scaler_skipped() -> None:
    no_loss = [0.5] * 12 + [NAN] + [0.5] * (WINDOW - 13)
    assert checks_of(skipped_in_fp16(12, losses=no_loss))["loss_finite"] is True
    assert checks_of(skipped_in_fp16(13, losses=no_loss))["loss_finite"] is False
    few = skipped_in_fp16(*range(WARMUP), WARMUP, WARMUP + 7, WINDOW - 1)
    assert checks_of(few)["updated"] is True
    many = skipped_in_fp16(*range(WARMUP + 4))
    assert (checks_of(many)["updated"], state_of(many)) == (False, ("failed", 12))


ALL = (*TRAINING, "evaluated", "learned", "above_chance")


def ended(found: Evidence, configuration: dict[str, Any] = WINDOW_OF_30, outcome: Outcome = OK) -> dict[str, Any]:
    """The record of a run whose manifest names every check."""
    return record_of(found, configuration, outcome, checks=ALL)


def test_a_run_whose_checks_hold_is_ok() -> None:
    assert ended(evidence())["status"]["state"] == "ok"
    made = ended(whole_run(), resolved(source="files"))
    assert made["status"] == dict(OK.as_dict())
    assert set(checks_of(made)) == set(ALL)


def test_a_run_whose_own_check_fails_keeps_its_metrics() -> None:
    made = ended(evidence(sums=(10.0, 10.1)))
    assert (*state_of(made), made["status"]["phase"]) == ("failed", 12, "report")
    assert "ranks_in_step" in made["status"]["reason"]
    assert made["status"]["remedy"]
    assert {"p_core", "p_train", "loss"} <= {metric["name"] for metric in made["metrics"]}


@pytest.mark.parametrize(
    ("lost", "check"),
    [
        ("precision", "precision"),
        ("memory", "parameters_finite"),
        ("memory", "ranks_in_step"),
        ("plan", "steps"),
        ("evaluation", "evaluated"),
        ("workload", "above_chance"),
    ],
)
def test_a_check_that_nobody_could_make_has_failed(lost: str, check: str) -> None:
    made = ended(without(whole_run(), lost), resolved(source="files"))
    assert state_of(made) == ("failed", 12)
    assert checks_of(made)[check] is False


def test_a_run_without_a_step_is_no_success() -> None:
    one_rank = evidence()
    for found in (evidence([]), one_rank._replace(steps={0: one_rank.steps[0]})):
        assert state_of(ended(found)) == ("failed", 12)


def test_the_end_of_a_broken_run_is_not_changed_by_checks() -> None:
    assert ended(evidence([NAN] * 20), outcome=FAILED)["status"]["exit_code"] == FAILED.exit_code


@pytest.mark.parametrize(("converged", "steps", "ok"), [(True, 60, True), (False, 60, False), (False, 100, True)])
def test_a_published_run_has_all_steps_or_reached_its_target(converged: bool, steps: int, ok: bool) -> None:
    made = ended(whole_run([0.5] * 50 + [0.1] * (steps - 50), converged), resolved(source="files"))
    assert checks_of(made)["steps"] is ok


def whole_run(losses: list[float] | None = None, converged: bool = False) -> Evidence:
    """Two ranks that ran to the published end, planned as 100 steps."""
    losses = [0.5] * 50 + [0.1] * 50 if losses is None else losses
    found = evidence(losses, converged=converged, train=40.0, e2e=42.0)
    fact_of(found, "evaluation")["steps"] = len(losses)
    fact_of(found, "workload")["chance"] = 0.25
    found.facts.append({"kind": "plan", "rank": 0, "time": 1.0, "steps": 100})
    return found


@pytest.mark.parametrize(("last", "ok"), [(0.1, True), (0.5, False), (0.9, False)])
def test_a_run_that_did_not_learn_is_found(last: float, ok: bool) -> None:
    losses = [0.5] * 50 + [last] * 50
    assert checks(evidence(losses, converged=False), resolved(source="files"))["learned"] is ok
    assert "learned" not in checks(evidence(losses), resolved(source="synthetic", full=True))


def examined(
    accuracy: float | None, chance: float | None = 0.25, counted: int = 48, *later: float | None
) -> Evidence:
    """A whole run with evaluations of these accuracies; three standard errors of 48 guesses at 1/4 are 0.1875."""
    found = whole_run()
    last = fact_of(found, "evaluation")
    last.update(accuracy=accuracy, counted=counted)
    # Before training a model may answer all of it right: that says nothing of the training.
    found.facts.append(dict(last, epoch=-1, accuracy=1.0))
    found.facts.extend(dict(last, epoch=epoch, accuracy=other) for epoch, other in enumerate(later, 1))
    fact_of(found, "workload")["chance"] = chance
    return found


@pytest.mark.parametrize(
    ("found", "ok"),
    [
        (examined(0.9), True),
        (examined(0.437), False),
        (examined(0.437, 0.25, 96), True),
        (examined(1.0, 1.0), False),
        (examined(0.9, 0.25, 48, 0.3, None), False),  # the last that asked for one counts
        (examined(0.9, None), None),  # the workload knows no chance
        (examined(None), None),  # no evaluation after training asked for an accuracy
    ],
)
def test_an_accuracy_is_held_against_guessing(found: Evidence, ok: bool | None) -> None:
    assert checks(found, resolved(source="files")).get("above_chance") is ok


def test_guessing_is_asked_of_a_whole_run_on_real_data() -> None:
    assert "above_chance" not in checks(examined(0.9), resolved(source="synthetic", full=True))
    assert "above_chance" not in checks(examined(0.9), resolved(source="files"), FAILED)


def test_a_resumed_run_is_not_held_against_its_beginning() -> None:
    found = examined(0.9)
    assert {"learned", "above_chance"} <= set(checks(found, resolved(source="files")))
    found.facts.append({"kind": "resumed", "rank": 0, "time": 1.0, "steps": 10})
    made = checks(found, resolved(source="files"))
    assert "learned" not in made
    assert made["above_chance"] is True
