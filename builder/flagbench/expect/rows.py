"""Published rows beside what is asked for, and runs beside published rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from flagbench.manifests.device import DeviceModel
from flagbench.manifests.fields import NOT_PUBLISHED, Scalar
from flagbench.manifests.model import Case, Catalog
from flagbench.manifests.rows import Claim, PublishedRow, published_rows
from flagbench.manifests.settings import reference_conditions
from flagbench.records.model import Record
from flagbench.verdict import VerifyResult, choose_claim, verify_claim, verify_reference
from flagbench.verdict.conditions import DEVICE_MODEL, Agreement, ConditionResult, compare_conditions
from flagbench.verdict.interval import STANDARD, Terms

_ASKED = {
    "devices": "devices",
    "precision": "precision",
    "sequence_length": "sequence",
    "batch_size": "micro_batch",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}
"""What is asked of a row, by the condition of a case or a record."""


def wanted_conditions(case: Case | None, device: DeviceModel, gpus: int | None) -> dict[str, Scalar]:
    """What is asked for: the device and how many, and of a case also its task and what its reference preset runs."""
    found: dict[str, Any] = {"device": device.id, "devices": gpus}
    if case is not None:
        found["task"] = case.workload.task
    if case is not None and case.kind != "measure":
        found["precision"] = case.default_precision
        found |= {_ASKED[name]: value for name, value in reference_conditions(case).items()}
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


def verify_nearest(records: Sequence[Record], catalog: Catalog, terms: Terms = STANDARD) -> VerifyResult | None:
    """The runs against the nearest claim; of a case without claims, beside the nearest row that is only cited.

    None where there is no such row. Raises FlagbenchError as `verify_claim`.
    """
    case = catalog.cases[records[0].case]
    claim = choose_claim(records[0], case, catalog.claims.values())
    if claim is not None:
        return verify_claim(records, claim, case, chosen=True, terms=terms)
    rows = rows_beside(records[0], catalog)
    return verify_reference(records, rows, case, terms=terms) if rows else None


def rows_beside(record: Record, catalog: Catalog) -> list[PublishedRow]:
    """The cited rows of the record's device that state nothing else than it did; those that state most come first.

    A case with claims has none.
    """
    case = catalog.cases[record.case]
    if has_claims(case.name, catalog):
        return []
    name, model = str(record.conditions.get(DEVICE_MODEL)), record.conditions.get("model")
    device = next((each.id for each in catalog.devices.values() if each.has_name(name)), None)
    if device is None or model != case.presets["reference"].get("model", {}).get("name"):
        return []
    conditions: dict[str, Any] = {"device": device, "task": case.workload.task}
    conditions |= {other: record.conditions[one] for one, other in _ASKED.items() if one in record.conditions}

    def unstated(row: PublishedRow) -> int:
        return sum(result.agreement is Agreement.NOT_PUBLISHED for result in compare(row, conditions))

    return sorted(cited_rows(case, conditions, catalog), key=unstated)


def cited_rows(case: Case, wanted: Mapping[str, Scalar], catalog: Catalog) -> list[PublishedRow]:
    """The cited rows of a case's model that have the metric that decides, and state nothing else than is wanted."""
    rows = []
    for row in published_rows(catalog):
        is_cited = row.model == case.workload.model and not isinstance(row, Claim)
        if is_cited and row.metric(case.gate) is not None and not differing(row, wanted):
            rows.append(row)
    return rows


def _number(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text, re.IGNORECASE)
    return int(found[1]) if found else None
