"""A record can be held against every claim, whatever the row publishes and wherever it ran."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flagbench.catalog.load import load_catalog
from flagbench.catalog.model import NOT_PUBLISHED, Case, Claim
from flagbench.record.model import Metric, Record
from flagbench.verify import Verdict, choose_claim, verify_claim

CATALOG = load_catalog(Path(__file__).parents[4] / "manifests")
CLAIMS = CATALOG.claims
SPEEDS = {name: claim for name, claim in CLAIMS.items() if claim.metric(CATALOG.cases[claim.case].gate) is not None}


def repeated(base: Record, claim: Claim, **conditions: Any) -> Record:
    """A record of exactly what a row says, with its own values measured; what was not published is `here`."""
    case = CATALOG.cases[claim.case]
    found = {name: "here" if value == NOT_PUBLISHED else value for name, value in claim.conditions.items()}
    measured = {m.name: m for m in base.metrics}
    example = measured["p_core_host"]

    def metric(name: str, value: float, unit: str, scope: str) -> Metric:
        return replace(example, name=name, value=value, unit=unit, scope=scope, ci95=(value * 0.99, value * 1.01))

    metrics = []
    for published in claim.metrics:
        spec = case.metric(published.name)
        assert spec is not None
        metrics.append(metric(spec.held_by or spec.name, published.value, published.unit, published.scope))
    gate = case.metric(case.gate)
    assert gate is not None
    if claim.metric(case.gate) is None:
        metrics.append(metric(gate.held_by or gate.name, 1.0, gate.unit, gate.scope))
    return replace(base, case=case.name, conditions={**found, **conditions}, metrics=tuple(metrics))


@pytest.mark.parametrize("name", SPEEDS)
def test_a_row_with_a_speed_is_reproduced_by_what_it_says(base: Record, name: str) -> None:
    claim = CLAIMS[name]
    case = CATALOG.cases[claim.case]
    result = verify_claim([repeated(base, claim)], claim, case)
    assert result.verdict is Verdict.REPRODUCED, result.reason
    silent = [n for n in case.work_conditions if claim.conditions[n] == NOT_PUBLISHED]
    assert result.qualifiers == tuple(f"{n} not published" for n in silent)
    assert all(line.comparable for line in result.metrics)
    assert choose_claim(repeated(base, claim), case, CLAIMS.values()) is claim


def test_every_row_of_glm_is_qualified_by_its_choices(base: Record) -> None:
    rows = [claim for name, claim in SPEEDS.items() if claim.case == "glm"]
    assert len(rows) == 4
    for claim in rows:
        record = repeated(base, claim, choices="10 at most, mean 9.1")
        conclusion = verify_claim([record], claim, CATALOG.cases["glm"]).conclusion
        assert conclusion.startswith("REPRODUCED (choices not published): p_core_host ")


@pytest.mark.parametrize("name", sorted(set(CLAIMS) - set(SPEEDS)))
def test_a_row_without_a_speed_says_what_is_comparable_instead(base: Record, name: str) -> None:
    claim = CLAIMS[name]
    case = CATALOG.cases[claim.case]
    record = repeated(base, claim)
    result = verify_claim([record], claim, case)
    assert result.verdict is Verdict.NOT_COMPARABLE
    comparable = ", ".join(metric.name for metric in claim.metrics)
    assert result.reason == (
        f"the claim publishes no {case.gate}, so there is no verdict on speed; comparable here: {comparable}"
    )
    chosen = choose_claim(record, case, CLAIMS.values())
    # Two rows were published twice, of equal conditions: the later ones, which have a speed, come first.
    assert chosen is claim or (chosen.id in SPEEDS and chosen.conditions == claim.conditions)


def test_another_device_is_held_against_a_row_that_has_a_speed(base: Record) -> None:
    for case, row in (("glm", "glm/a100-1x8-fp32"), ("llama2-7b-lora", "llama2-7b-lora/a100-1x1-fp16-bs4")):
        record = repeated(base, CLAIMS[row], device_model="NVIDIA H200", torch="2.10", cuda="13.1", driver="580.1")
        assert choose_claim(record, CATALOG.cases[case], CLAIMS.values()).id == row


def test_a_withdrawn_value_is_held_and_the_anomaly_says_so(base: Record) -> None:
    claim = CLAIMS["glm/a100-2x8-fp32-bs8"]
    result = verify_claim([repeated(base, claim)], claim, CATALOG.cases["glm"])
    line = result.metric("e2e_time")
    assert line is not None
    assert line.verdict is Verdict.REPRODUCED
    assert {"withdrawn", "withdrawn-acc", "mfu-does-not-fit"} <= {a.id for a in result.anomalies}


def test_a_published_utilisation_is_held_by_the_publishers_formula(base: Record) -> None:
    claim = CLAIMS["llama2-7b-lora/a100-1x1-fp16-bs4"]
    result = verify_claim([repeated(base, claim)], claim, CATALOG.cases[claim.case])
    line = result.metric("mfu")
    assert line is not None
    assert (line.held_by, line.verdict) == ("mfu_published_formula", Verdict.REPRODUCED)
    assert line.expected.value == 0.361


def test_a_row_without_the_gate_is_the_nearest_for_its_own_device_only(
    base: Record, edit: Callable[..., Record], case: Case, claim: Claim
) -> None:
    memory = next(m for m in claim.metrics if m.name == "mem_peak")
    silent = dict.fromkeys(("torch", "cuda", "driver"), NOT_PUBLISHED)
    other = replace(
        claim,
        id="distilbert/other-1x8",
        conditions={**claim.conditions, **silent, "device_model": "Other 64G"},
        metrics=(memory,),
    )
    elsewhere = edit(base, conditions={"device_model": "Third", "torch": "2", "cuda": "13", "driver": "580"})
    # Fewer of its conditions differ, for it says less; it says nothing of speed either.
    assert choose_claim(elsewhere, case, [other, claim]) is claim
    assert choose_claim(edit(elsewhere, conditions={"device_model": "Other 64G"}), case, [claim, other]) is other
