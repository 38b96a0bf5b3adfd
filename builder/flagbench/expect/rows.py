"""Compares published rows with the conditions that a user asks for, and runs with the nearest published row.

A row is one line of a table that somebody published. It is a claim if a case of flagbench can reproduce it; other
rows are only cited, and give no verdict.
"""

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
"""The names of the wanted conditions that `compare` uses, by their names in a case or a record."""
_MICRO_BATCH = r"(?:^|mbs |micro |local |lbs=)(\d+)(?:$| )"
"""Matches the number of samples of a step in the batch of a row, such as `mbs 2`, `micro 4` or `lbs=8`."""
_ACCUMULATION_STEPS = r"(?:accumulated |gas?=)(\d+)"
"""Matches the gradient accumulation steps in the batch or layout of a row, such as `accumulated 4` or `gas=4`."""
_TENSOR_PARALLEL = r"tp\W?(\d+)"
_PIPELINE_PARALLEL = r"pp\W?(\d+)"


def wanted_conditions(case: Case | None, device: DeviceModel, gpus: int | None) -> dict[str, Scalar]:
    """Return the conditions that a row should have, by name, for `compare`.

    They are the device and the number of devices; for a case, also its task and the conditions of its reference
    preset. Conditions that are not known are left out.
    """
    wanted: dict[str, Scalar | None] = {"device": device.id, "devices": gpus}
    if case is not None:
        wanted["task"] = case.workload.task
    if case is not None and case.kind != "measure":
        wanted["precision"] = case.default_precision
        for name, condition in reference_conditions(case).items():
            wanted[_WANTED_NAMES[name]] = condition
        preset = case.presets["reference"]
        wanted["sequence"] = _find_lengths(preset["data"])
        layout = preset.get("layout", {})
        wanted["tp"] = layout.get("tp")
        if wanted["tp"] == 0:  # as many as there are devices
            wanted["tp"] = gpus
        wanted["pp"] = layout.get("pp")
    return {name: condition for name, condition in wanted.items() if condition is not None}


def compare(row: PublishedRow, wanted: Mapping[str, Scalar]) -> tuple[ConditionResult, ...]:
    """Return the comparison of each wanted condition with the row."""
    batch = row.batch
    layout = row.text("layout")
    published: dict[str, Scalar | None] = {
        "task": row.task,
        "devices": row.count("devices"),
        "precision": row.precision_label,
        "device": row.device_id,
        "sequence": row.conditions.get("sequence_length"),
        "micro_batch": _find_number(_MICRO_BATCH, batch),
        "gradient_accumulation_steps": _find_number(_ACCUMULATION_STEPS, f"{batch} {layout}"),
        "tp": _find_number(_TENSOR_PARALLEL, layout),
        "pp": _find_number(_PIPELINE_PARALLEL, layout),
    }
    # A row may have a name of a device that several devices have: for one of those, the device is not published.
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
    """Return the wanted conditions that differ from those of the row."""
    return tuple(condition for condition in compare(row, wanted) if condition.agreement is Agreement.DIFFERS)


def has_claims(case: str, catalog: Catalog) -> bool:
    """Return whether the case has a claim; if so, its runs are compared with claims and not with cited rows."""
    return any(claim.case == case for claim in catalog.claims.values())


def verify_nearest(records: Sequence[Record], catalog: Catalog, terms: Terms = STANDARD) -> VerifyResult | None:
    """Return the verdict on runs with the nearest claim or, for a case without claims, with the nearest cited rows.

    It is None if there is neither. Raises FlagbenchError as `verify_claim` does.

    Args:
        records: runs of one configuration.
        terms: the limits of the verdict.
    """
    case = catalog.cases[records[0].case]
    claim = choose_claim(records[0], case, catalog.claims.values())
    if claim is not None:
        return verify_claim(records, claim, case, chosen=True, terms=terms)
    rows = cited_rows_for(records[0], catalog)
    if not rows:
        return None
    return verify_reference(records, rows, case, terms=terms)


def cited_rows_for(record: Record, catalog: Catalog) -> list[PublishedRow]:
    """Return the cited rows that a record is compared with, those with the most conditions first.

    They are the rows of its device that do not contradict its conditions; for a case with claims there are none.
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
    lengths = _find_lengths(record.conditions)
    if lengths is not None:
        conditions["sequence"] = lengths

    def count_not_published(row: PublishedRow) -> int:
        return sum(condition.agreement is Agreement.NOT_PUBLISHED for condition in compare(row, conditions))

    return sorted(cited_rows(case, conditions, catalog), key=count_not_published)


def cited_rows(case: Case, wanted: Mapping[str, Scalar], catalog: Catalog) -> list[PublishedRow]:
    """Return the cited rows of a case's model that have a deciding metric and contradict no wanted condition."""
    rows = []
    for row in published_rows(catalog):
        if isinstance(row, Claim) or row.model != case.workload.model:
            continue
        gate = case.with_gate_among(row.metrics).gate
        if row.metric(gate) is not None and not differing(row, wanted):
            rows.append(row)
    return rows


def _find_lengths(settings: Mapping[str, Any]) -> Scalar | None:
    """Return the length of a sequence as rows have it; for a case that generates tokens, `in/out 32/128`.

    `settings`: the section `data` of a configuration, or the conditions of a record. None if it is in neither.
    """
    if "output_length" in settings:
        return f"in/out {settings['prompt_length']}/{settings['output_length']}"
    length: Scalar | None = settings.get("sequence_length")
    return length


def _find_number(pattern: str, text: str) -> int | None:
    """Return the number that the group of a pattern matches in a text; None without a match."""
    match = re.search(pattern, text, re.IGNORECASE)
    if match is None:
        return None
    return int(match[1])
