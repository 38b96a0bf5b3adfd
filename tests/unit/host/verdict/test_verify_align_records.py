"""Two loss curves of records: whether they have to be equal, and what is said of their conditions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from catalogs import CATALOG
from flagbench.errors import FlagbenchError
from flagbench.records.model import Layout, Losses, Status
from flagbench.records.read import read_record
from flagbench.verdict import Agreement, Alignment, AlignResult, align
from flagbench.verdict.conditions import ConditionResult
from flagbench.verdict.curve import Curve, of_record
from flagbench.verdict.curve_conditions import SAME_CURVE, another_curve
from flagbench_core.exit_codes import ExitCode

from .conftest import BASE, CASE, ROWS, edit
from .test_verify_align import REFERENCE, STEPS, off

BATCH = BASE.conditions["batch_size"]
HALF = Layout(dp=4, tp=2, pp=1)
"""Of BASE's eight devices, four read batches of their own."""


def trained(losses: Curve = REFERENCE, name: str = "fixture-run-a", **fields: Any) -> Curve:
    """A run of BASE with these losses."""
    record = edit(record_id=name, **fields)
    quality = replace(record.quality, losses=Losses(0, STEPS, tuple(losses.losses.values())))
    return of_record(replace(record, quality=quality))


REFERENCE_RUN = trained(name="fixture-run-b")


def aligned(a: Curve, b: Curve = REFERENCE_RUN) -> AlignResult:
    return align(a, b, CASE)


@pytest.mark.parametrize(
    ("fields", "verdict", "differing"),
    [
        ({}, "ALIGNED", []),
        # Other data, seed, model or optimisation is another curve.
        ({"conditions": {"seed": 7}}, "NOT_COMPARABLE", ["seed"]),
        ({"conditions": {"seed": None}}, "NOT_COMPARABLE", ["seed"]),
        ({"conditions": {"data": "synthetic"}}, "NOT_COMPARABLE", ["data"]),
        ({"conditions": {"learning_rate": 1e-3}}, "NOT_COMPARABLE", ["learning_rate"]),
        # How it was computed is listed and compared; other hardware and software is what the rule is for.
        ({"conditions": {"precision": "bf16"}}, "ALIGNED", ["precision"]),
        ({"conditions": {"stop_rule": "other"}}, "ALIGNED", ["stop_rule"]),
        ({"conditions": {"device_model": "MetaX C500", "torch": "2.0", "driver": "1"}}, "ALIGNED", []),
        # The samples of a whole step have to be equal.
        ({"layout": HALF, "conditions": {"batch_size": 2 * BATCH}}, "ALIGNED", []),
        ({"layout": HALF, "conditions": {"gradient_accumulation_steps": 2}}, "ALIGNED", []),
        ({"layout": HALF}, "NOT_COMPARABLE", ["samples_per_step"]),
        ({"status": Status("failed", "train", "a rank failed", 4)}, "INVALID", []),
    ],
)
def test_what_of_two_runs_has_to_be_equal(fields: dict[str, Any], verdict: str, differing: list[str]) -> None:
    found = aligned(trained(off(0.01), **fields))
    assert (found.verdict, [condition.name for condition in found.conditions]) == (verdict, differing)
    if verdict == "NOT_COMPARABLE":
        assert found.mean_error == pytest.approx(0.01)  # shown all the same


def test_runs_may_diverge_and_know_a_condition_equally_little() -> None:
    assert aligned(trained(off(0.03))).verdict is Alignment.DIVERGED
    unknown = (trained(conditions={"seed": None}, name=f"fixture-run-{name}") for name in "ab")
    assert align(*unknown, CASE).verdict is Alignment.ALIGNED


def test_files_are_told_apart_by_their_hash() -> None:
    def between(*facts: dict[str, Any]) -> Alignment:
        runs = (trained(), REFERENCE_RUN)
        quality = [{**run.record.raw["quality"], "data": of} for run, of in zip(runs, facts)]
        raws = [{**run.record.raw, "quality": of} for run, of in zip(runs, quality)]
        return aligned(*(replace(run, record=replace(run.record, raw=raw)) for run, raw in zip(runs, raws))).verdict

    assert between({"train_sha256": "00"}, {"train_sha256": "ff"}) is Alignment.NOT_COMPARABLE
    assert between({"tokens": 5}, {"tokens": 6}) is Alignment.NOT_COMPARABLE
    same = ({"train_sha256": "00", "eval_examples": examples} for examples in (1, 2))
    assert between(*same) is Alignment.ALIGNED


def test_a_failed_reference_is_invalid_too() -> None:
    failed = trained(status=Status("failed", "train", "a rank failed", 4))
    assert align(REFERENCE_RUN, failed, CASE).verdict is Alignment.INVALID


def test_a_file_has_no_conditions() -> None:
    for found in (align(trained(), REFERENCE, CASE), align(off(0.001), REFERENCE_RUN, CASE)):
        assert (found.verdict, found.conditions) == (Alignment.ALIGNED, ())
        assert any("not known" in note for note in found.notes)


@pytest.mark.parametrize("a", [REFERENCE_RUN, trained(case="glm")], ids=["itself", "another case"])
def test_what_cannot_be_a_reference_is_a_usage_error(a: Curve) -> None:
    with pytest.raises(FlagbenchError) as caught:
        aligned(a)
    assert caught.value.code is ExitCode.USAGE


def test_a_layout_does_not_make_another_curve() -> None:
    depending = [case.metric("loss").depends_on for case in CATALOG.cases.values()]
    assert all(depending)
    names = {name for each in depending for name in each}
    assert {"layout", "attention", "recompute", "precision"} <= SAME_CURVE <= names
    for name in names:
        condition = ConditionResult(name, "one", "another", Agreement.DIFFERS)
        assert another_curve(condition) == (name not in SAME_CURVE)


@pytest.mark.parametrize(
    ("a", "verdict"),
    [("2", "ALIGNED"), ("seed", "NOT_COMPARABLE"), ("synthetic", "NOT_COMPARABLE"), ("short", "NOT_COMPARABLE")],
)
def test_measured_runs_of_an_earlier_version(a: str, verdict: str) -> None:
    runs = (of_record(read_record(ROWS / f"run-distilbert-{name}.json")) for name in (a, "again"))
    found = align(*runs, CASE)
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (found.verdict, told["schema"], told["published_rule"]) == (verdict, "alignment/v1", True)
    assert told["exit_code"] == int(found.verdict.exit_code)
