"""Without --claim the nearest row is chosen: the one with the fewest conditions that differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from flagbench.manifests.fields import NOT_PUBLISHED
from flagbench.manifests.rows import Claim
from flagbench.records.model import Metric, Record
from flagbench.records.read import read_record
from flagbench.verdict import Verdict, choose_claim, verify_claim

from .conftest import BASE, CASE, CATALOG, CLAIM, ROWS, edit

CLAIMS = CATALOG.claims


def row(name: str, **conditions: Any) -> Record:
    """A record with the conditions of a row, where it states them, and others."""
    said = {key: "here" if value == NOT_PUBLISHED else value for key, value in CLAIMS[name].conditions.items()}
    return structs.replace(BASE, case=CLAIMS[name].case, conditions={**said, **conditions})


def chosen(record: Record) -> Claim:
    claim = choose_claim(record, CATALOG.cases[record.case], CLAIMS.values())
    assert claim is not None
    return claim


def test_the_nearest_row_of_what_a_row_says_is_that_row() -> None:
    for name, claim in CLAIMS.items():
        found, gate = chosen(row(name)), CATALOG.cases[claim.case].gate
        # Two rows were published twice, of equal conditions: the later ones, which have a speed, come first. What a
        # device reaches was published in a row for each metric.
        equal = found.conditions == claim.conditions
        again = equal and found.metric(gate) and not claim.metric(gate)
        assert found is claim or again or (equal and claim.case == "roofs")


def test_what_another_device_reaches_is_not_held_against() -> None:
    record = row("roofs/a100-1x8-bf16", device_model="NVIDIA H200")
    assert choose_claim(record, CATALOG.cases["roofs"], CLAIMS.values()) is None


def test_what_another_shape_reaches_is_not_held_against() -> None:
    assert chosen(row("roofs/h100-1x1-mamf-bf16")).id == "roofs/h100-1x1-mamf-bf16"
    record = row("roofs/h100-1x1-mamf-bf16", shape="8192 x 8192 x 8192")
    assert choose_claim(record, CATALOG.cases["roofs"], CLAIMS.values()) is None


@pytest.mark.parametrize(
    ("name", "verdict"),
    [("roofs/h100-1x1-mamf-bf16", Verdict.REPRODUCED), ("roofs/a100-1x8-bf16", Verdict.INCONCLUSIVE)],
)
def test_a_short_run_makes_the_products_of_mamf(name: str, verdict: Verdict) -> None:
    claim, measured = CLAIMS[name], read_record(ROWS / "run-roofs-2.json")
    (published,) = claim.metrics
    interval = (published.value * 0.999, published.value * 1.001)
    metric = Metric(published.name, published.value, published.unit, "device", ci95=interval, n=100)
    conditions = {**measured.conditions, **row(name).conditions}
    record = structs.replace(measured, conditions=conditions, metrics=(metric,))
    result = verify_claim([record], claim, CATALOG.cases["roofs"])
    assert (result.gate, result.verdict) == (published.name, verdict)


@pytest.mark.parametrize("name", ["glm/a100-1x8-fp32", "llama2-7b-lora/a100-1x1-fp16-bs4"])
def test_another_device_is_held_against_a_row_that_has_a_speed(name: str) -> None:
    record = row(name, device_model="NVIDIA H200", torch="2.10", cuda="13.1", driver="580.1")
    assert chosen(record).id == name


def test_a_row_without_the_gate_is_for_its_own_device_only() -> None:
    memory = next(m for m in CLAIM.metrics if m.name == "mem_peak")
    silent = dict.fromkeys(("torch", "cuda", "driver"), NOT_PUBLISHED)
    conditions = {**CLAIM.conditions, **silent, "device_model": "Other 64G"}
    other = replace(CLAIM, id="distilbert/other-1x8", conditions=conditions, metrics=(memory,))
    elsewhere = edit(conditions={"device_model": "Third", "torch": "2", "cuda": "13", "driver": "580"})
    # Fewer of its conditions differ, for it says less; it says nothing of speed either.
    assert choose_claim(elsewhere, CASE, [other, CLAIM]) is CLAIM
    assert choose_claim(edit(elsewhere, conditions={"device_model": "Other 64G"}), CASE, [CLAIM, other]) is other


def test_the_first_of_equals_is_chosen() -> None:
    twin = replace(CLAIM, id="distilbert/twin")
    assert choose_claim(BASE, CASE, [twin, CLAIM]) is twin
    single = edit(conditions={"devices": 1, "batch_size": 96, "learning_rate": 0.00015})
    assert chosen(single).id == "distilbert/a100-1x1-fp32-bs96"


def test_a_case_without_a_claim_has_none() -> None:
    assert choose_claim(BASE, CASE, []) is None
