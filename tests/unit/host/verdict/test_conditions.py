"""Comparable, field by field: one condition that differs changes the answer, and only where it matters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from catalogs import CATALOG
from flagbench.errors import FlagbenchError
from flagbench.manifests.fields import NOT_PUBLISHED
from flagbench.manifests.rows import Claim
from flagbench.verdict import Agreement, Verdict, verify_baseline, verify_claim
from flagbench.verdict.conditions import agreement, gate_conditions, gate_spec
from flagbench_core.exit_codes import ExitCode

from .conftest import BASE, CASE, CLAIM, edit, held, line, runs

GATE = gate_spec(CASE)
GROUPS = CASE.condition_groups
OTHERS = GROUPS["optimisation"] + GROUPS["data"]


def other(name: str) -> Any:
    """A value of the type that a condition has in BASE, and not equal."""
    value = BASE.conditions[name]
    if isinstance(value, bool):
        return not value
    return f"{value}-other" if isinstance(value, str) else value + 1


def silent(*names: str) -> Claim:
    """The claim, without these conditions published."""
    return replace(CLAIM, conditions={**CLAIM.conditions, **dict.fromkeys(names, NOT_PUBLISHED)})


@pytest.mark.parametrize("name", GATE.depends_on)
def test_a_condition_of_p_core_that_differs_is_not_comparable(name: str) -> None:
    absent = structs.replace(BASE, conditions={n: v for n, v in BASE.conditions.items() if n != name})
    for record in (edit(conditions={name: other(name)}), edit(conditions={name: None}), absent):
        result = held(record)
        assert result.verdict is Verdict.NOT_COMPARABLE
        assert result.reason.startswith(f"{name} is ")
        assert [c.name for c in result.differing] == [c.name for c in result.forbidding] == [name]
        assert result.only_conditions_differ


def test_a_required_condition_must_be_published() -> None:
    """Such as the release of an engine, on which the speed depends more than on anything that rows do state."""
    claim = silent("optimizer")
    assert verify_claim([BASE], claim, CASE).verdict is not Verdict.NOT_COMPARABLE
    result = verify_claim([BASE], claim, replace(CASE, required_conditions=("optimizer",)))
    assert result.verdict is Verdict.NOT_COMPARABLE
    assert [condition.name for condition in result.differing] == ["optimizer"]
    assert (
        verify_claim([BASE], CLAIM, replace(CASE, required_conditions=("optimizer",))).verdict is Verdict.REPRODUCED
    )


def test_no_row_of_vllm_gives_a_verdict_without_its_release() -> None:
    case = CATALOG.cases["serve-llama3.1-8b"]
    assert set(case.required_conditions) == {"vllm"} <= set(gate_conditions(case))
    assert "vllm" not in case.software_conditions


@pytest.mark.parametrize("name", CASE.software_conditions)
def test_any_one_software_condition_qualifies_the_verdict(name: str) -> None:
    for value, qualifier in ((other(name), "software differs"), (None, "software unknown")):
        result = held(edit(conditions={name: value}))
        assert (result.verdict, result.qualifiers) == (Verdict.REPRODUCED, (qualifier,))


@pytest.mark.parametrize("name", OTHERS)
def test_another_condition_changes_only_what_depends_on_it(name: str) -> None:
    result = held(edit(conditions={name: other(name)}))
    assert result.verdict is Verdict.REPRODUCED
    assert line(result, "e2e_time").verdict is Verdict.NOT_COMPARABLE


@pytest.mark.parametrize(
    ("name", "more_shapes", "given"),
    [
        ("model", (), False),
        ("sequence_length", (), False),
        # Other hardware doing the same work has a fraction, and still no verdict from it.
        ("device_model", (), True),
        ("batch_size", (), True),
        ("batch_size", ("batch_size",), False),
    ],
)
def test_a_ratio_is_given_only_for_the_shapes_of_the_case(
    name: str, more_shapes: tuple[str, ...], given: bool
) -> None:
    case = replace(CASE, shapes=(*CASE.shapes, *more_shapes))
    result = verify_claim([edit(conditions={name: other(name)})], CLAIM, case)
    assert {m.ratio is not None for m in result.metrics if m.name != "acc"} == {given}


def test_work_that_was_not_published_may_have_been_less() -> None:
    result = held(BASE, claim=silent("batch_size"))
    # The speed depends on it, and nobody knows whether this run had the same.
    assert (result.verdict, result.qualifiers) == (Verdict.INCONCLUSIVE, ("batch_size not published",))
    assert {c.name: c.agreement for c in result.conditions}["batch_size"] is Agreement.NOT_PUBLISHED


@pytest.mark.parametrize("name", [*OTHERS, *GROUPS["loading"], *GROUPS["software"]])
def test_only_unpublished_work_of_the_gate_qualifies(name: str) -> None:
    assert held(BASE, claim=silent(name)).qualifiers == ()


@pytest.mark.parametrize(
    ("here", "expected", "answer"),
    [
        (32, 32.0, Agreement.EQUAL),
        (5e-5, 5e-5 * (1 + 1e-12), Agreement.EQUAL),
        (5e-5, 5e-5 * (1 + 1e-8), Agreement.DIFFERS),
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


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"conditions": {"driver": "535.1"}}, ("driver", "470.129.06", BASE.record_id, "535.1", "fixture-other")),
        ({"conditions": {"batch_size": 64}}, ("batch_size", "32", "64")),
        ({"record_id": BASE.record_id}, (BASE.record_id,)),
        ({"case": "glm"}, ("glm",)),
    ],
)
def test_records_of_two_things_are_not_one_sample(changes: dict[str, Any], named: tuple[str, ...]) -> None:
    with pytest.raises(FlagbenchError) as caught:
        held(BASE, edit(**{"record_id": "fixture-other", **changes}))
    assert caught.value.code is ExitCode.USAGE
    assert all(name in caught.value.message for name in named)


def test_conditions_unknown_in_all_runs_are_alike() -> None:
    unknown = [edit(run, conditions={"driver": None}) for run in runs(*[1940.0, 1941.0] * 3)]
    assert held(*unknown).qualifiers == ("software unknown",)


def test_runs_may_differ_in_what_the_gate_does_not_depend_on() -> None:
    values = [1930.0, 1935.0, 1940.0, 1945.0, 1950.0]
    seeds = [edit(record, conditions={"seed": seed}) for seed, record in enumerate(runs(*values))]
    for claim in (CLAIM, silent("seed")):
        result = held(*seeds, claim=claim)
        assert result.verdict is Verdict.REPRODUCED
        assert line(result, "p_core").measured.runs == 5
        # Of one accuracy for five seeds nothing can be said.
        acc = line(result, "acc")
        assert (acc.comparable, acc.reason) == (False, "seed varies between the runs")
    assert verify_baseline(seeds, edit(record_id="fixture-before"), CASE).reason == "seed varies between the runs"
