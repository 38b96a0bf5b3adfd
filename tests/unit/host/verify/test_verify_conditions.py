"""Comparable, field by field: one condition that differs changes the answer, and only where it matters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flagbench.catalog.load import load_catalog
from flagbench.catalog.model import NOT_PUBLISHED, Case, Catalog, Claim
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.record.model import Record
from flagbench.verify import Agreement, Verdict, verify_baseline, verify_claim
from flagbench.verify.conditions import agreement, shown

CASE = load_catalog(Path(__file__).parents[4] / "manifests").cases["distilbert"]
GATE = next(m for m in CASE.metrics if m.name == CASE.gate)
OTHERS = CASE.condition_groups["optimisation"] + CASE.condition_groups["data"]


def another(value: Any) -> Any:
    """A value of the same type that is not equal."""
    if isinstance(value, bool):
        return not value
    return f"{value}-other" if isinstance(value, str) else value + 1


@pytest.mark.parametrize("name", GATE.depends_on)
@pytest.mark.parametrize("known", [True, False])
def test_any_one_condition_of_p_core_that_differs_or_is_unknown_forbids_the_comparison(
    base: Record, edit: Callable[..., Record], case: Case, claim: Claim, name: str, known: bool
) -> None:
    value = another(base.conditions[name]) if known else None
    result = verify_claim([edit(base, conditions={name: value})], claim, case)
    assert result.verdict is Verdict.NOT_COMPARABLE
    assert result.reason.startswith(f"{name} is {shown(value)} here, ")
    assert [c.name for c in result.differing] == [name]


@pytest.mark.parametrize("name", GATE.depends_on)
def test_a_condition_absent_from_the_record_is_unknown(base: Record, case: Case, claim: Claim, name: str) -> None:
    conditions = {n: v for n, v in base.conditions.items() if n != name}
    result = verify_claim([replace(base, conditions=conditions)], claim, case)
    assert result.verdict is Verdict.NOT_COMPARABLE


@pytest.mark.parametrize("name", CASE.software_conditions)
@pytest.mark.parametrize(("known", "qualifier"), [(True, "software differs"), (False, "software unknown")])
def test_any_one_software_condition_qualifies_the_verdict(
    base: Record,
    edit: Callable[..., Record],
    case: Case,
    claim: Claim,
    name: str,
    known: bool,
    qualifier: str,
) -> None:
    value = another(base.conditions[name]) if known else None
    result = verify_claim([edit(base, conditions={name: value})], claim, case)
    assert (result.verdict, result.qualifiers) == (Verdict.REPRODUCED, (qualifier,))


@pytest.mark.parametrize("name", OTHERS)
def test_a_condition_that_p_core_does_not_depend_on_changes_only_what_does(
    base: Record, edit: Callable[..., Record], case: Case, claim: Claim, name: str
) -> None:
    result = verify_claim([edit(base, conditions={name: another(base.conditions[name])})], claim, case)
    assert result.verdict is Verdict.REPRODUCED
    line = result.metric("e2e_time")
    assert line is not None
    assert line.verdict is Verdict.NOT_COMPARABLE


@pytest.mark.parametrize("name", ["model", "sequence_length"])
def test_a_ratio_is_given_only_for_the_same_model_and_shapes(
    base: Record, edit: Callable[..., Record], case: Case, claim: Claim, name: str
) -> None:
    def ratios(record: Record) -> list[object]:
        return [m.ratio for m in verify_claim([record], claim, case).metrics if m.name != "acc"]

    assert set(ratios(edit(base, conditions={name: another(base.conditions[name])}))) == {None}
    # Other hardware doing the same work has a fraction, and still no verdict from it.
    assert None not in ratios(edit(base, conditions={"device_model": "another"}))


def test_what_was_not_published_is_not_held_against_a_record(base: Record, case: Case, claim: Claim) -> None:
    silent = replace(claim, conditions={**claim.conditions, "batch_size": NOT_PUBLISHED})
    result = verify_claim([base], silent, case)
    assert result.verdict is Verdict.REPRODUCED
    # The speed depends on it, and nobody knows whether this run had the same.
    assert result.qualifiers == ("batch_size not published",)
    found = {c.name: c.agreement for c in result.conditions}
    assert found["batch_size"] is Agreement.NOT_PUBLISHED


@pytest.mark.parametrize("name", [*OTHERS, *CASE.condition_groups["loading"], *CASE.condition_groups["software"]])
def test_only_unpublished_work_that_the_gate_depends_on_qualifies(
    base: Record, case: Case, claim: Claim, name: str
) -> None:
    silent = replace(claim, conditions={**claim.conditions, name: NOT_PUBLISHED})
    assert verify_claim([base], silent, case).qualifiers == ()


def test_the_row_that_does_not_say_its_accumulation_is_qualified(
    catalog: Catalog, base: Record, edit: Callable[..., Record], case: Case
) -> None:
    single = catalog.claims["distilbert/a100-1x1-fp32-bs96"]
    same = {name: value for name, value in single.conditions.items() if value != NOT_PUBLISHED}
    record = edit(base, conditions=same, metrics={"p_core_host": {"value": 288.0, "ci95": (287.0, 289.0)}})
    result = verify_claim([record], single, case)
    assert (result.verdict, result.qualifiers) == (
        Verdict.REPRODUCED,
        ("gradient_accumulation_steps not published",),
    )


def test_the_shapes_of_a_ratio_are_the_cases_own(base: Record, edit: Callable[..., Record], claim: Claim) -> None:
    other = edit(base, conditions={"batch_size": 64})
    for shapes, given in ((CASE.shapes, True), ((*CASE.shapes, "batch_size"), False)):
        line = verify_claim([other], claim, replace(CASE, shapes=shapes)).metric("p_core")
        assert line is not None
        assert (line.ratio is not None) is given


@pytest.mark.parametrize(
    ("here", "expected", "answer"),
    [
        (32, 32.0, Agreement.EQUAL),
        (5e-5, 5e-5 * (1 + 1e-12), Agreement.EQUAL),
        (5e-5, 5e-5 * (1 + 1e-8), Agreement.DIFFERS),
        (float("nan"), float("nan"), Agreement.DIFFERS),
        (True, 1, Agreement.DIFFERS),
        (False, 0, Agreement.DIFFERS),
        (True, True, Agreement.EQUAL),
        ("11.6", 11.6, Agreement.DIFFERS),
        ("tf32", "TF32", Agreement.DIFFERS),
        (None, 1, Agreement.UNKNOWN),
        (1, None, Agreement.UNKNOWN),
        (None, NOT_PUBLISHED, Agreement.NOT_PUBLISHED),
    ],
)
def test_values_agree_by_type_and_number(here: Any, expected: Any, answer: Agreement) -> None:
    assert agreement(here, expected) is answer


def test_records_verified_together_must_be_runs_of_one_thing(
    base: Record, edit: Callable[..., Record], case: Case, claim: Claim
) -> None:
    other = edit(base, record_id="fixture-other", conditions={"driver": "535.1"})
    with pytest.raises(FlagbenchError) as caught:
        verify_claim([base, other], claim, case)
    assert caught.value.code is ExitCode.USAGE
    for named in ("driver", "470.129.06", base.record_id, "535.1", other.record_id):
        assert named in caught.value.message
    wider = edit(base, record_id="fixture-other", conditions={"batch_size": 64})
    other_case = edit(base, record_id="fixture-glm", case="glm")
    for second, named in ((wider, "batch_size"), (base, base.record_id), (other_case, "glm")):
        with pytest.raises(FlagbenchError) as caught:
            verify_claim([base, second], claim, case)
        assert named in caught.value.message
    with pytest.raises(FlagbenchError):
        verify_claim([], claim, case)


def test_conditions_unknown_in_all_runs_are_alike(
    runs: Callable[..., list[Record]], edit: Callable[..., Record], case: Case, claim: Claim
) -> None:
    unknown = [edit(r, conditions={"driver": None}) for r in runs(*[1940.0, 1941.0] * 3)]
    assert verify_claim(unknown, claim, case).qualifiers == ("software unknown",)


def test_runs_may_differ_in_what_the_gate_does_not_depend_on(
    runs: Callable[..., list[Record]], edit: Callable[..., Record], case: Case, claim: Claim
) -> None:
    values = [1930.0, 1935.0, 1940.0, 1945.0, 1950.0]
    seeds = [edit(record, conditions={"seed": seed}) for seed, record in enumerate(runs(*values))]
    silent = replace(claim, conditions={**claim.conditions, "seed": NOT_PUBLISHED})
    for published in (claim, silent):
        result = verify_claim(seeds, published, case)
        assert result.verdict is Verdict.REPRODUCED
        assert "between 5 runs" in str(result.metric("p_core"))
        # Of one accuracy for five seeds nothing can be said.
        acc = result.metric("acc")
        assert acc is not None
        assert (acc.comparable, acc.reason) == (False, "seed varies between the runs")
    assert verify_baseline(seeds, edit(runs(1940.0)[0], record_id="fixture-before"), case).reason == (
        "seed varies between the runs"
    )
