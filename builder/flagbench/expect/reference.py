"""Rows of the catalogue beside a result: a ratio for reference, never a verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flagbench.expect.rows import Entry, published
from flagbench.manifests.catalogue import read_cases
from flagbench.manifests.model import Catalog
from flagbench.records.model import Metric, Record
from flagbench.verdict.conditions import DEVICE

_STATED = {
    "devices": "devices",
    "precision": "precision",
    "sequence_length": "sequence",
    "batch_size": "micro_batch",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}
"""What rows of the catalogue state, by the condition of a record."""


def references(record: Record, catalog: Catalog) -> Iterator[str]:
    """The ratio of a run to each row of its device that states nothing else than it did."""
    for measured, entry, value, unit in reference_rows(record, catalog):
        what = f"{measured.name} {measured.value:.6g} is {measured.value / float(value):.3f} of {value} {unit}"
        yield f"reference, not a verdict: {what} ({entry.id}: {entry.source})"


def reference_rows(record: Record, catalog: Catalog) -> Iterator[tuple[Metric, Entry, str, str]]:
    """What a run measured, with each row of its device that states nothing else than it did, its value and unit.

    A case with claims has none. As with a claim, a published metric is compared with what the case's manifest says
    that it is held by.
    """
    case, claimed = catalog.cases[record.case], {claim.case for claim in catalog.claims.values()}
    if record.case in claimed or record.status.state != "ok":
        return
    name, model = str(record.conditions.get(DEVICE)), record.conditions.get("model")
    device = next((each.id for each in catalog.devices.values() if each.has_name(name)), None)
    if device is None or model != case.presets["reference"].get("model", {}).get("name"):
        return
    of = read_cases(catalog)[case.name]
    conditions: dict[str, Any] = {"device": device, "task": of.task}
    conditions |= {other: record.conditions[one] for one, other in _STATED.items() if one in record.conditions}
    for entry in published(catalog):
        spec = case.metric(entry.speed or "")
        if entry.row.model != of.model or spec is None or entry.differing(conditions):
            continue
        measured = record.metric(spec.held_by or spec.name)
        if measured is not None:
            value, unit = entry.row.metrics[spec.name]
            yield measured, entry, value, unit
