"""Two loss curves of records: whether they have to be equal, and what is said of their conditions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from catalogs import CATALOG
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.record.model import Layout, Losses, Record, Status
from flagbench.record.read import read_record
from flagbench.verify import Agreement, Alignment, AlignResult, align
from flagbench.verify.conditions import ConditionResult
from flagbench.verify.curve import Curve, of_record
from flagbench.verify.curve_conditions import SAME_CURVE, another_curve

from .conftest import BASE, CASE, ROWS, edit
from .test_verify_align import REFERENCE, STEPS, off


def trained(losses: Curve = REFERENCE, name: str = "fixture-run-a", **fields: Any) -> Curve:
    """A run of BASE with these losses."""
    record = edit(record_id=name, **fields)
    quality = replace(record.quality, losses=Losses(0, STEPS, tuple(losses.losses.values())))
    return of_record(replace(record, quality=quality))


REFERENCE_RUN = trained(name="fixture-run-b")


def aligned(a: Curve, b: Curve = REFERENCE_RUN) -> AlignResult:
    return align(a, b, CASE)


def differing(found: AlignResult) -> list[str]:
    return [condition.name for condition in found.conditions]


def test_two_runs_of_the_same_conditions() -> None:
    found = aligned(trained(off(0.01)))
    assert (found.verdict, found.conditions, found.case) == (Alignment.ALIGNED, (), "distilbert")
    assert aligned(trained(off(0.03))).verdict is Alignment.DIVERGED


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", 7), ("data", "synthetic"), ("model", "another"), ("sequence_length", 64), ("learning_rate", 1e-3)],
)
def test_other_data_seed_model_or_optimisation_is_another_curve(name: str, value: Any) -> None:
    found = aligned(trained(conditions={name: value}))
    assert (found.verdict, differing(found)) == (Alignment.NOT_COMPARABLE, [name])
    assert found.verdict.exit_code is ExitCode.NOT_COMPARABLE
    assert found.mean_error == 0.0  # shown all the same


def test_a_condition_unknown_on_one_side_is_not_equal() -> None:
    found = aligned(trained(conditions={"seed": None}))
    assert (found.verdict, differing(found)) == (Alignment.NOT_COMPARABLE, ["seed"])
    both = align(trained(conditions={"seed": None}), trained(conditions={"seed": None}, name="fixture-run-b"), CASE)
    assert both.verdict is Alignment.ALIGNED


@pytest.mark.parametrize(("name", "value"), [("precision", "bf16"), ("recompute", True), ("stop_rule", "other")])
def test_how_it_was_computed_is_listed_and_compared(name: str, value: Any) -> None:
    found = aligned(trained(off(0.01), conditions={name: value}))
    assert (found.verdict, differing(found)) == (Alignment.ALIGNED, [name])


def test_other_hardware_and_software_is_what_the_rule_is_for() -> None:
    found = aligned(trained(off(0.01), conditions={"device_model": "MetaX C500", "torch": "2.0", "driver": "1"}))
    assert (found.verdict, found.conditions) == (Alignment.ALIGNED, ())


def test_only_the_samples_of_a_whole_step_have_to_be_equal() -> None:
    """BASE has 8 devices; 4 with twice the batch make the same steps, and 4 with the same batch do not."""
    batch = BASE.conditions["batch_size"]
    half = Layout(dp=4, tp=2, pp=1)
    assert aligned(trained(layout=half, conditions={"batch_size": 2 * batch})).verdict is Alignment.ALIGNED
    accumulated = {"gradient_accumulation_steps": 2 * BASE.conditions["gradient_accumulation_steps"]}
    assert aligned(trained(layout=half, conditions=accumulated)).verdict is Alignment.ALIGNED
    found = aligned(trained(layout=half))
    assert (found.verdict, differing(found)) == (Alignment.NOT_COMPARABLE, ["samples_per_step"])


def test_files_are_told_apart_by_their_hash() -> None:
    def with_data(curve: Curve, **facts: Any) -> Curve:
        record = curve.record
        quality = {**record.raw["quality"], "data": facts}
        return replace(curve, record=replace(record, raw={**record.raw, "quality": quality}))

    def between(a: dict[str, Any], b: dict[str, Any]) -> AlignResult:
        return aligned(with_data(trained(), **a), with_data(REFERENCE_RUN, **b))

    found = between({"train_sha256": "00", "eval_examples": 1}, {"train_sha256": "ff", "eval_examples": 2})
    assert (found.verdict, differing(found)) == (Alignment.NOT_COMPARABLE, ["data.train_sha256"])
    assert between({"tokens": 5}, {"tokens": 6}).verdict is Alignment.NOT_COMPARABLE
    same = between({"train_sha256": "00", "eval_examples": 1}, {"train_sha256": "00", "eval_examples": 2})
    assert same.verdict is Alignment.ALIGNED


def test_a_failed_run_is_invalid() -> None:
    failed = trained(status=Status("failed", "train", "a rank failed", 4))
    assert aligned(failed).verdict is Alignment.INVALID
    assert align(REFERENCE_RUN, trained(status=failed.record.status), CASE).verdict is Alignment.INVALID


def test_a_file_has_no_conditions() -> None:
    for found in (align(trained(), REFERENCE, CASE), align(off(0.001), REFERENCE_RUN, CASE)):
        assert (found.verdict, found.conditions) == (Alignment.ALIGNED, ())
        assert any("not known" in note for note in found.notes)


def test_a_run_is_not_its_own_reference_and_cases_do_not_mix() -> None:
    for a in (REFERENCE_RUN, trained(case="glm")):
        with pytest.raises(FlagbenchError) as caught:
            aligned(a)
        assert caught.value.code is ExitCode.USAGE


def test_a_layout_does_not_make_another_curve() -> None:
    names = {name for case in CATALOG.cases.values() for name in case.metric("loss").depends_on}
    assert {"layout", "attention", "recompute", "precision"} <= SAME_CURVE <= names
    for name in names:
        condition = ConditionResult(name, "one", "another", Agreement.DIFFERS)
        assert another_curve(condition) == (name not in SAME_CURVE)


def test_every_case_says_what_its_loss_depends_on() -> None:
    for case in CATALOG.cases.values():
        assert case.metric("loss").depends_on


# Measured runs: real curves of real records


def measured(name: str) -> Record:
    return read_record(ROWS / f"run-distilbert-{name}.json")


@pytest.mark.parametrize(
    ("a", "verdict"),
    [("2", "ALIGNED"), ("seed", "NOT_COMPARABLE"), ("synthetic", "NOT_COMPARABLE"), ("short", "NOT_COMPARABLE")],
)
def test_records_of_an_earlier_version(a: str, verdict: str) -> None:
    found = align(of_record(measured(a)), of_record(measured("again")), CASE)
    assert found.verdict == verdict
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (told["schema"], told["exit_code"], told["published_rule"]) == (
        "alignment/v1",
        int(found.verdict.exit_code),
        True,
    )
