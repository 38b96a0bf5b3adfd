"""Published rows beside what is asked for, and runs of a case without claims beside rows that are only cited."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flagbench.manifests.device import DeviceModel
from flagbench.manifests.fields import NOT_PUBLISHED, Scalar
from flagbench.manifests.load import published_rows
from flagbench.manifests.model import Case, Catalog
from flagbench.manifests.rows import Claim, PublishedRow, PublishedValue
from flagbench.manifests.settings import reference_conditions
from flagbench.records.model import Metric, Record
from flagbench.verdict import VerifyResult, verify_reference
from flagbench.verdict.conditions import DEVICE, Agreement, ConditionResult, compare_conditions
from flagbench.verdict.interval import STANDARD, Terms

_STATED = {
    "devices": "devices",
    "precision": "precision",
    "sequence_length": "sequence",
    "batch_size": "micro_batch",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}
"""What rows of the catalogue state, by the condition of a record."""


def wanted_conditions(
    case: Case | None, task: str | None, device: DeviceModel, gpus: int | None
) -> dict[str, Scalar]:
    """What is asked for: the device and how many, and of a model also what its reference preset runs."""
    found: dict[str, Any] = {"device": device.id, "devices": gpus, "task": task}
    if case is not None and case.kind != "measure":
        found["precision"] = case.default_precision
        reference = reference_conditions(case)
        found["sequence"] = reference["sequence_length"]
        found["micro_batch"] = reference["batch_size"]
        found["gradient_accumulation_steps"] = reference["gradient_accumulation_steps"]
        found.update((name, case.presets["reference"].get("layout", {}).get(name)) for name in ("tp", "pp"))
    return {name: value for name, value in found.items() if value is not None}


def compare(row: PublishedRow, wanted: Mapping[str, Scalar]) -> tuple[ConditionResult, ...]:
    """Every condition asked for beside what the row states."""
    batch, layout = row.batch, row.text("layout")
    published: dict[str, Scalar | None] = {
        "task": row.task,
        "devices": row.count("devices"),
        "precision": row.precision_label,
        "device": row.device_id,
        "sequence": row.conditions.get("sequence_length"),
        "micro_batch": _number(r"(?:^|mbs |micro |local |lbs=)(\d+)(?:$| )", batch),
        "gradient_accumulation_steps": _number(r"(?:accumulated |gas?=)(\d+)", f"{batch} {layout}"),
        "tp": _number(r"tp\W?(\d+)", layout),
        "pp": _number(r"pp\W?(\d+)", layout),
    }
    if row.device_id is None and wanted.get("device") not in row.may_be:
        published["device"] = row.device
    stated = {name: NOT_PUBLISHED if value in (None, "") else value for name, value in published.items()}
    return compare_conditions(wanted, wanted, stated)


def differing(row: PublishedRow, wanted: Mapping[str, Scalar]) -> tuple[ConditionResult, ...]:
    """Every condition asked for that the row states otherwise."""
    return tuple(result for result in compare(row, wanted) if result.agreement is Agreement.DIFFERS)


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


def _number(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text, re.IGNORECASE)
    return int(found[1]) if found else None
