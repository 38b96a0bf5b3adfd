"""Runs of a case without claims, beside rows of the catalogue: a ratio for reference, never a verdict on speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flagbench.expect.rows import compare, differing
from flagbench.manifests.load import published_rows
from flagbench.manifests.model import Catalog
from flagbench.manifests.rows import Claim, PublishedRow, PublishedValue
from flagbench.records.model import Metric, Record
from flagbench.verdict import VerifyResult, verify_reference
from flagbench.verdict.conditions import DEVICE, Agreement
from flagbench.verdict.interval import STANDARD, Terms

_STATED = {
    "devices": "devices",
    "precision": "precision",
    "sequence_length": "sequence",
    "batch_size": "micro_batch",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}
"""What rows of the catalogue state, by the condition of a record."""


def has_claims(case: str, catalog: Catalog) -> bool:
    """Whether any claim is of the case: then runs are compared with claims alone."""
    return any(claim.case == case for claim in catalog.claims.values())


def nearest_reference(records: Sequence[Record], catalog: Catalog, terms: Terms = STANDARD) -> VerifyResult | None:
    """The runs of a case without claims beside the nearest row that is only cited; None where there is no such row.

    Raises FlagbenchError as `verify_claim`.
    """
    case = catalog.cases[records[0].case]
    rows = [row for row in cited_rows(records[0], catalog) if row.metric(case.gate) is not None]
    if not rows:
        return None
    return verify_reference(records, rows, case, terms=terms)


def cited_rows(record: Record, catalog: Catalog) -> list[PublishedRow]:
    """The rows of the record's device that state nothing else than it did; those that state most come first.

    A case with claims has none.
    """
    case = catalog.cases[record.case]
    if has_claims(case.name, catalog):
        return []
    name, model = str(record.conditions.get(DEVICE)), record.conditions.get("model")
    device = next((each.id for each in catalog.devices.values() if each.has_name(name)), None)
    if device is None or model != case.presets["reference"].get("model", {}).get("name"):
        return []
    conditions: dict[str, Any] = {"device": device, "task": case.workload.task}
    conditions |= {other: record.conditions[one] for one, other in _STATED.items() if one in record.conditions}

    def unstated(row: PublishedRow) -> int:
        return sum(result.agreement is Agreement.NOT_PUBLISHED for result in compare(row, conditions))

    rows = []
    for row in published_rows(catalog):
        is_cited = row.model == case.workload.model and not isinstance(row, Claim)
        if is_cited and not differing(row, conditions):
            rows.append(row)
    return sorted(rows, key=unstated)


def reference_rows(record: Record, catalog: Catalog) -> Iterator[tuple[Metric, PublishedRow, PublishedValue]]:
    """What a run measured, with each row of `cited_rows` and the value of it that this is compared with.

    As with a claim, a published metric is compared with what the case's manifest says that it is held by.
    """
    case = catalog.cases[record.case]
    for row in cited_rows(record, catalog):
        if row.speed is None:
            continue
        spec = case.metric(row.speed.name)
        if spec is None:
            continue
        measured = record.metric(spec.held_by or spec.name)
        if measured is not None:
            yield measured, row, row.speed
