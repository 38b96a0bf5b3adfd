"""Claims and rows of the catalogue in one shape, and what of them differs from what is asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from flagbench.manifests.catalogue import CaseOfModel, CatalogueFile, CatalogueValue, peak_of
from flagbench.manifests.model import NOT_PUBLISHED, Case, Catalog, Claim, DeviceModel, Scalar
from flagbench.verdict.conditions import Agreement, ConditionResult, compare_conditions

RATES = ("tokens_per_second_per_device", "matmul", "p_core", "p_infer_core", "samples_per_second")
"""Speeds that are compared between devices; a row's own is the first that it has."""
_SHOWN_FIRST = (*RATES, "tokens_per_second", "output_tokens_per_second_per_device", "output_tokens_per_second")
_OF_CLAIM = ("device_model", "devices", "nodes", "batch_size", "sequence_length", "layout", "precision", "model")
"""Conditions of a claim that a row has a field of its own for."""


@dataclass(frozen=True)
class PublishedRow:
    """A published row. What is not published is None or empty."""

    id: str
    """The claim's, or the file of the catalogue and the row's number in it."""
    case: str | None
    """Of a claim."""
    model: str
    task: str
    device: str
    device_id: str | None
    precision: str | None
    devices: int | None
    nodes: int | None
    batch: str
    sequence: str
    parallelism: str
    software: str
    conditions: str
    metrics: Mapping[str, tuple[str, str]]
    """Value as printed and unit, by metric."""
    source: str
    peak: float | None = None
    """The device's published peak in the row's precision, FLOP/s."""

    @property
    def speed(self) -> str:
        """The metric that is shown: a speed, else the first there is."""
        return next((name for name in _SHOWN_FIRST if name in self.metrics), next(iter(self.metrics)))

    @property
    def rate(self) -> tuple[str, float] | None:
        """The metric that is compared between devices, and its value; None without one."""
        name = next((name for name in RATES if name in self.metrics), None)
        return None if name is None else (name, float(self.metrics[name][0]))

    @property
    def compared(self) -> dict[str, Scalar]:
        """The conditions that can be asked for, as published."""
        axes = dict(re.findall(r"(tp|pp)\W?(\d+)", self.parallelism.lower()))
        micro_batch = re.search(r"(?:^|mbs |micro |local )(\d+)(?:$| )", self.batch.lower())
        values: dict[str, Any] = {
            "task": self.task,
            "device": self.device_id or self.device,
            "devices": self.devices,
            "nodes": self.nodes,
            "precision": self.precision,
            "sequence": int(self.sequence) if self.sequence.isdecimal() else self.sequence,
            "micro_batch": int(micro_batch[1]) if micro_batch else None,
            **{name: int(axes[name]) if name in axes else None for name in ("tp", "pp")},
        }
        return {name: NOT_PUBLISHED if value in (None, "") else value for name, value in values.items()}

    def differing(self, wanted: Mapping[str, Scalar]) -> tuple[ConditionResult, ...]:
        """Every condition asked for that the row states otherwise."""
        results = compare_conditions(wanted, wanted, self.compared)
        return tuple(result for result in results if result.agreement is Agreement.DIFFERS)

    def to_dict(self, wanted: Mapping[str, Scalar]) -> dict[str, Any]:
        """As JSON."""
        metrics = [{"name": name, "value": value, "unit": unit} for name, (value, unit) in self.metrics.items()]
        differs = [{"name": r.name, "here": r.here, "published": r.expected} for r in self.differing(wanted)]
        return {**asdict(self), "metrics": metrics, "differs": differs}


def published_rows(
    files: tuple[CatalogueFile, ...], cases: Mapping[str, CaseOfModel], catalog: Catalog
) -> tuple[PublishedRow, ...]:
    """Every claim whose case the catalogue knows the model of, then the rows of the catalogue."""
    claims = (
        _of_claim(claim, cases[claim.case], catalog) for claim in catalog.claims.values() if claim.case in cases
    )
    return (*claims, *(row for file in files for row in _of_file(file, catalog)))


def wanted_conditions(
    case: Case | None, task: str | None, device: DeviceModel, gpus: int | None
) -> dict[str, Scalar]:
    """What is asked for: the device and how many, and of a case also what its reference preset runs."""
    found: dict[str, Any] = {"device": device.id, "devices": gpus, "task": task}
    if case is not None:
        preset = case.presets["reference"]
        settings = preset.get("train", {})
        found["precision"] = case.default_precision
        found["sequence"] = preset.get("data", {}).get("sequence_length")
        found["micro_batch"] = settings.get("micro_batch_size", settings.get("batch_size"))
        found.update((name, preset.get("layout", {}).get(name)) for name in ("tp", "pp"))
    return {name: value for name, value in found.items() if value is not None}


def _of_claim(claim: Claim, of: CaseOfModel, catalog: Catalog) -> PublishedRow:
    stated = {name: value for name, value in claim.conditions.items() if value != NOT_PUBLISHED}
    word = str(stated.get("device_model", NOT_PUBLISHED))
    device = next((device for device in catalog.devices.values() if device.name == word), None)
    nodes, devices = stated.get("nodes"), stated.get("devices")
    software = ("torch", "cuda", "driver")
    return PublishedRow(
        id=claim.id,
        case=claim.case,
        model=of.model,
        task=of.task,
        device=word,
        device_id=None if device is None else device.id,
        precision=claim.precision.executed,
        devices=devices if isinstance(devices, int) else None,
        nodes=nodes if isinstance(nodes, int) else None,
        batch=str(stated.get("batch_size", "")),
        sequence=str(stated.get("sequence_length", "")),
        parallelism=str(stated.get("layout", "")),
        software=", ".join(f"{name} {stated[name]}" for name in software if name in stated),
        conditions="; ".join(f"{n} {v}" for n, v in stated.items() if n not in (*_OF_CLAIM, *software)),
        metrics={metric.name: (str(metric.value), metric.unit) for metric in claim.metrics},
        source=f"{claim.source.project}, {claim.source.file}, {claim.source.commit}",
        peak=peak_of(device, claim.precision.executed),
    )


def _of_file(file: CatalogueFile, catalog: Catalog) -> Iterator[PublishedRow]:
    def number(value: CatalogueValue) -> int:
        return value.row

    for row, group in groupby(file.values, number):
        values = list(group)
        of = values[0]
        yield PublishedRow(
            id=f"{file.name}/{row}",
            case=None,
            **{name: getattr(of, name) for name in _SHARED},
            metrics={value.metric: (value.value, value.unit) for value in values},
            source=", ".join((file.source.project, of.file or file.source.path, of.section, file.source.commit[:8])),
            peak=peak_of(catalog.devices.get(of.device_id or ""), of.precision),
        )


_SHARED = (
    *("model", "task", "device", "device_id", "precision", "devices", "nodes", "batch", "sequence", "parallelism"),
    *("software", "conditions"),
)
"""Fields that a row has as the catalogue's values do."""
