"""What of a published row differs from what is asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from flagbench.manifests.device import DeviceModel
from flagbench.manifests.fields import NOT_PUBLISHED, Scalar
from flagbench.manifests.model import Case
from flagbench.manifests.rows import PublishedRow
from flagbench.manifests.settings import reference_conditions
from flagbench.verdict.conditions import Agreement, ConditionResult, compare_conditions


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


def _number(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text, re.IGNORECASE)
    return int(found[1]) if found else None
