"""Runs of a case without claims, beside rows of the catalogue: a ratio for reference, never a verdict on speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flagbench.expect.rows import Entry, published
from flagbench.manifests.model import Catalog
from flagbench.records.model import Metric, Record
from flagbench.verdict import VerifyResult, verify_reference
from flagbench.verdict.conditions import DEVICE, Agreement
from flagbench.verdict.interval import STANDARD, Terms
from flagbench.verdict.result import CitedRow

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
    rows = []
    for entry in cited_entries(records[0], catalog):
        if entry.speed == case.gate:
            printed = entry.row.metrics[case.gate]
            rows.append(CitedRow(entry.id, entry.source, float(printed.value), printed.unit))
    if not rows:
        return None
    return verify_reference(records, rows, case, terms=terms)


def cited_entries(record: Record, catalog: Catalog) -> list[Entry]:
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

    def unstated(entry: Entry) -> int:
        return sum(result.agreement is Agreement.NOT_PUBLISHED for result in entry.compare(conditions))

    entries = [
        entry
        for entry in published(catalog)
        if entry.case is None and entry.row.model == case.workload.model and not entry.differing(conditions)
    ]
    return sorted(entries, key=unstated)


def reference_rows(record: Record, catalog: Catalog) -> Iterator[tuple[Metric, Entry, str, str]]:
    """What a run measured, with each row of `cited_entries`, its value and unit.

    As with a claim, a published metric is compared with what the case's manifest says that it is held by.
    """
    case = catalog.cases[record.case]
    for entry in cited_entries(record, catalog):
        spec = case.metric(entry.speed or "")
        if spec is None:
            continue
        measured = record.metric(spec.held_by or spec.name)
        if measured is not None:
            value, unit = entry.row.metrics[spec.name]
            yield measured, entry, value, unit
