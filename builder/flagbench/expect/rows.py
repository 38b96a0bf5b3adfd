"""Published rows beside what is asked for, and runs beside published rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from flagbench.manifests.device import DeviceModel
from flagbench.manifests.fields import NOT_PUBLISHED, Scalar
from flagbench.manifests.lookup import device_reported_as
from flagbench.manifests.model import Case, Catalog
from flagbench.manifests.rows import Claim, PublishedRow, published_rows
from flagbench.manifests.settings import reference_conditions
from flagbench.records.model import Record
from flagbench.verdict import VerifyResult, choose_claim, verify_claim, verify_reference
from flagbench.verdict.conditions import DEVICE_MODEL, Agreement, ConditionResult, compare_conditions
from flagbench.verdict.interval import STANDARD, Terms

_WANTED_NAMES = {
    "devices": "devices",
    "precision": "precision",
    "sequence_length": "sequence",
    "batch_size": "micro_batch",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}
"""What is wanted of a row, by the name of the condition in a case or a record."""


def wanted_conditions(case: Case | None, device: DeviceModel, gpus: int | None) -> dict[str, Scalar]:
    """The wanted device and number of devices; for a case, also its task and the conditions of its reference."""
    wanted: dict[str, Scalar | None] = {"device": device.id, "devices": gpus}
    if case is not None:
        wanted["task"] = case.workload.task
    if case is not None and case.kind != "measure":
        wanted["precision"] = case.default_precision
        for name, condition in reference_conditions(case).items():
            wanted[_WANTED_NAMES[name]] = condition
        layout = case.presets["reference"].get("layout", {})
        wanted["tp"], wanted["pp"] = layout.get("tp"), layout.get("pp")
    return {name: condition for name, condition in wanted.items() if condition is not None}


def compare(row: PublishedRow, wanted: Mapping[str, Scalar]) -> tuple[ConditionResult, ...]:
    """Each wanted condition beside what the row states."""
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
    conditions: dict[str, Scalar] = {}
    for name, condition in published.items():
        if condition is None or condition == "":
            conditions[name] = NOT_PUBLISHED
        else:
            conditions[name] = condition
    return compare_conditions(wanted, wanted, conditions)


def differing(row: PublishedRow, wanted: Mapping[str, Scalar]) -> tuple[ConditionResult, ...]:
    """The wanted conditions for which the row states something else."""
    return tuple(condition for condition in compare(row, wanted) if condition.agreement is Agreement.DIFFERS)


def has_claims(case: str, catalog: Catalog) -> bool:
    """Whether the case has a claim; its runs are then compared with claims alone."""
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
    if not rows:
        return None
    return verify_reference(records, rows, case, terms=terms)


def rows_beside(record: Record, catalog: Catalog) -> list[PublishedRow]:
    """The cited rows of the record's device that state no other conditions than its own, the most specific first.

    A case with claims has none.
    """
    case = catalog.cases[record.case]
    if has_claims(case.name, catalog):
        return []
    device = device_reported_as(str(record.conditions.get(DEVICE_MODEL)), catalog)
    model = case.presets["reference"].get("model", {}).get("name")
    if device is None or record.conditions.get("model") != model:
        return []
    conditions: dict[str, Any] = {"device": device.id, "task": case.workload.task}
    for name, wanted_name in _WANTED_NAMES.items():
        if name in record.conditions:
            conditions[wanted_name] = record.conditions[name]

    def count_not_published(row: PublishedRow) -> int:
        return sum(condition.agreement is Agreement.NOT_PUBLISHED for condition in compare(row, conditions))

    return sorted(cited_rows(case, conditions, catalog), key=count_not_published)


def cited_rows(case: Case, wanted: Mapping[str, Scalar], catalog: Catalog) -> list[PublishedRow]:
    """The cited rows of a case's model that have the metric that decides and contradict no wanted condition."""
    rows = []
    for row in published_rows(catalog):
        is_cited = row.model == case.workload.model and not isinstance(row, Claim)
        if is_cited and row.metric(case.gate) is not None and not differing(row, wanted):
            rows.append(row)
    return rows


def _number(pattern: str, text: str) -> int | None:
    match = re.search(pattern, text, re.IGNORECASE)
    if match is None:
        return None
    return int(match[1])
