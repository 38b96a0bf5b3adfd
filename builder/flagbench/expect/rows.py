"""Claims and rows of the catalogue in one shape, and what of them differs from what is asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from flagbench.manifests.catalogue import Printed, PublishedRow, read_catalogue
from flagbench.manifests.device import DeviceModel
from flagbench.manifests.device_names import find_cards
from flagbench.manifests.fields import NOT_PUBLISHED, Scalar
from flagbench.manifests.model import Case, Catalog
from flagbench.manifests.rows import Claim, Workload
from flagbench.manifests.settings import reference_conditions
from flagbench.verdict.conditions import Agreement, ConditionResult, compare_conditions

SPEEDS = (
    *("tokens_per_second_per_device", "mamf_bf16", "mamf_fp8", "p_core", "p_infer_core"),
    *("samples_per_second", "tokens_per_second"),
    *("output_tokens_per_second_per_device", "output_tokens_per_second"),
)
"""A row's speed is the first of these that it has."""
_BATCH = ("batch_size", "gradient_accumulation_steps")
_SOFTWARE = ("torch", "cuda", "driver")
_OF_CLAIM = (
    *("device_model", "devices", "nodes", "sequence_length", "layout", "precision", "model"),
    *(*_BATCH, *_SOFTWARE),
)
"""Conditions of a claim that a row has a field of its own for."""


@dataclass(frozen=True)
class Entry:
    """A published row and where it is from."""

    id: str
    """The claim's, or the name of the catalogue's file and the row's number in it."""
    row: PublishedRow
    source: str
    case: str | None = None
    """Of a claim."""
    may_be: tuple[str, ...] = ()
    """Ids of the devices that the publisher's word fits, where it is not said which of them."""

    @property
    def speed(self) -> str | None:
        """The metric that is compared between devices; None without one."""
        return next((name for name in SPEEDS if name in self.row.metrics), None)

    @property
    def details(self) -> str:
        """What the row's cells do not show, and its source."""
        row = self.row
        return "; ".join(filter(None, (row.parallelism, row.software, row.conditions, self.source)))

    def differing(self, wanted: Mapping[str, Scalar]) -> tuple[ConditionResult, ...]:
        """Every condition asked for that the row states otherwise."""
        return tuple(result for result in self.compare(wanted) if result.agreement is Agreement.DIFFERS)

    def compare(self, wanted: Mapping[str, Scalar]) -> tuple[ConditionResult, ...]:
        """Every condition asked for beside what the row states."""
        row = self.row
        word = "" if wanted.get("device") in self.may_be else row.device
        published: dict[str, Any] = {
            **{name: getattr(row, name) for name in ("task", "devices", "precision")},
            "device": row.device_id or word,
            "sequence": int(row.sequence) if row.sequence.isdecimal() else row.sequence,
            "micro_batch": _number(r"(?:^|mbs |micro |local |lbs=)(\d+)(?:$| )", row.batch),
            "gradient_accumulation_steps": _number(r"(?:accumulated |gas?=)(\d+)", f"{row.batch} {row.parallelism}"),
            **{name: _number(rf"{name}\W?(\d+)", row.parallelism) for name in ("tp", "pp")},
        }
        stated = {name: NOT_PUBLISHED if value in (None, "") else value for name, value in published.items()}
        return compare_conditions(wanted, wanted, stated)

    def to_dict(self, wanted: Mapping[str, Scalar]) -> dict[str, Any]:
        """As JSON."""
        cells = {name: value for name, value in asdict(self.row).items() if name != "row"}
        metrics = [{"name": name, "value": value, "unit": unit} for name, (value, unit) in self.row.metrics.items()]
        differs = [{"name": r.name, "here": r.here, "published": r.expected} for r in self.differing(wanted)]
        own = {"id": self.id, "case": self.case, "source": self.source, "may_be": self.may_be}
        return {**own, **cells, "metrics": metrics, "differs": differs}


@lru_cache(maxsize=1)
def published(catalog: Catalog) -> tuple[Entry, ...]:
    """Every claim, then every row of the catalogue."""
    found = [_of_claim(claim, catalog.cases[claim.case].workload, catalog) for claim in catalog.claims.values()]
    for source in read_catalogue(catalog):
        for row in source.rows:
            where = (source.project, row.file or source.path, row.section, source.commit[:8])
            may_be = () if row.device_id else _devices(row.device, catalog)
            found.append(Entry(f"{source.name}/{row.row}", row, ", ".join(where), may_be=may_be))
    return tuple(found)


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


def _number(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text, re.IGNORECASE)
    return int(found[1]) if found else None


def _devices(word: str, catalog: Catalog) -> tuple[str, ...]:
    """Ids of the devices that a publisher's word fits."""
    return tuple(device.id for device in find_cards(word, catalog.devices.values()))


def _of_claim(claim: Claim, of: Workload, catalog: Catalog) -> Entry:
    stated: dict[str, Any] = {name: value for name, value in claim.conditions.items() if value != NOT_PUBLISHED}
    if of.task == "matmul":  # where the condition is that of the run's short product
        stated["precision"] = claim.precision.label
    word = stated.get("device_model", NOT_PUBLISHED)
    device = next((device for device in catalog.devices.values() if device.name == word), None)
    row = PublishedRow(
        model=of.model,
        task=of.task,
        device=word,
        device_id=None if device is None else device.id,
        precision=stated.get("precision"),
        devices=stated.get("devices"),
        nodes=stated.get("nodes"),
        batch=" / accumulated ".join(str(stated[name]) for name in _BATCH if name in stated),
        sequence=str(stated.get("sequence_length", "")),
        parallelism=str(stated.get("layout", "")),
        software=", ".join(f"{name} {stated[name]}" for name in _SOFTWARE if name in stated),
        conditions="; ".join(f"{name} {value}" for name, value in stated.items() if name not in _OF_CLAIM),
        metrics={metric.name: Printed(str(metric.value), metric.unit) for metric in claim.metrics},
    )
    source = f"{claim.source.project}, {claim.source.file}, {claim.source.commit}"
    return Entry(claim.id, row, source, claim.case, () if device else _devices(word, catalog))
