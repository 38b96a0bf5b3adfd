"""Finds what has been published of a model for a device, and which cases run it: the answer of `flagbench expect`.

If no row was published for the device, the results have the rows of other devices that come closest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from flagbench.errors import FlagbenchError
from flagbench.expect.memory import lacking, measured_memory
from flagbench.expect.rows import differing, wanted_conditions
from flagbench.machine.catalog import find_device_models
from flagbench.machine.devices import this_machine
from flagbench.manifests.device import DeviceModel
from flagbench.manifests.fields import Scalar
from flagbench.manifests.lookup import UnknownNameError, catalog_get, devices_named, near_names
from flagbench.manifests.model import Catalog
from flagbench.manifests.rows import Claim, PublishedRow, published_rows
from flagbench.manifests.settings import can_be_split
from flagbench_core.config import preset_of

_BRIEF_ROWS = 8
"""Most rows of the table without --wide."""
_PLANNED_GPUS = 8
"""The number of devices in a proposed `plan` command if the user named none: those of a usual node."""


@dataclass(frozen=True)
class PublishedResults:
    """What has been published of a model for a device, and which cases run it."""

    name: str
    """The case or model that was asked for."""
    model: str
    task: str | None
    """The task of the case; None for a model, which means every task."""
    device: DeviceModel
    wanted: Mapping[str, Scalar]
    """The conditions that a row should have, by name (`wanted_conditions`)."""
    rows_of_device: tuple[PublishedRow, ...]
    """Rows of this device, those with the fewest differing conditions first."""
    possible_rows: tuple[PublishedRow, ...]
    """Rows of the same task that may be of this device: they have a name that several devices have."""
    rows_of_other_devices: tuple[PublishedRow, ...]
    """Rows of other devices and the same task, the nearest first."""
    cases: tuple[str, ...]
    """Cases that run the model, without those that took more memory than the device has."""
    too_large: tuple[str, ...]
    """For each case left out: the memory it took, and what needs less."""
    to_plan: tuple[str, ...]
    """For each case that can be split and whose memory was not measured: the command that computes it."""

    def to_dict(self) -> dict[str, Any]:
        """Return the results as a JSON object."""
        return {
            "asked": self.name,
            "model": self.model,
            "task": self.task,
            "wanted": self.wanted,
            "cases": self.cases,
            "device": self.device.id,
            "rows": [_document(row, self.wanted) for row in self.rows_of_device],
            "nearest": [_document(row, self.wanted) for row in (*self.possible_rows, *self.rows_of_other_devices)],
        }

    @property
    def matching_rows(self) -> list[PublishedRow]:
        """Rows of this device and the task."""
        return [row for row in self.rows_of_device if self.task in (None, row.task)]

    @property
    def candidate_rows(self) -> list[PublishedRow]:
        """Rows of the task that are of this device or may be: those with the fewest differing conditions first."""
        rows = [*self.matching_rows, *self.possible_rows]
        return sorted(rows, key=lambda row: len(differing(row, self.wanted)))

    @property
    def rows_of_other_tasks(self) -> list[PublishedRow]:
        """Rows of this device and other tasks."""
        matching_rows = self.matching_rows
        return [row for row in self.rows_of_device if row not in matching_rows]

    @property
    def nearest_by_task(self) -> dict[str, PublishedRow]:
        """The nearest row of each task: a row of this device if it has one for the task, else of another one."""
        nearest: dict[str, PublishedRow] = {}
        for row in (*self.candidate_rows, *self.rows_of_other_devices):
            nearest.setdefault(row.task, row)
        return nearest

    @property
    def rows_in_order(self) -> list[PublishedRow]:
        """All rows, in order: of a model, the nearest by task and project are first."""
        rows = [*self.candidate_rows, *self.rows_of_other_devices, *self.rows_of_other_tasks]
        if self.task is not None:
            return rows
        return self._with_nearest_first(rows)

    @property
    def first_rows(self) -> list[PublishedRow]:
        """The first rows, without --wide: rows of other devices only where this one has none."""
        rows = self.candidate_rows
        if not rows:
            rows += self.rows_of_other_devices
        rows += self.rows_of_other_tasks
        if self.task is None:
            rows = self._with_nearest_first(rows)
        return rows[:_BRIEF_ROWS]

    def _with_nearest_first(self, rows: Sequence[PublishedRow]) -> list[PublishedRow]:
        """Move to the front the nearest row of each task, then that of each further project on this device."""
        nearest = list(self.nearest_by_task.values())
        projects = {row.source.project for row in nearest}
        for row in self.candidate_rows:
            if row.source.project not in projects:
                projects.add(row.source.project)
                nearest.append(row)
        return [*nearest, *(row for row in rows if row not in nearest)]


def find_published(name: str, on: str | None, gpus: int | None, catalog: Catalog) -> PublishedResults:
    """Return what is published of a case or model for a device.

    Args:
        name: the name of a case or of a model.
        on: the name of the device; None for the device of this machine.
        gpus: the number of devices; None for any or, without `on`, for those of this machine.

    Raises FlagbenchError (USAGE) for an unknown model or device.
    """
    published = published_rows(catalog)
    case = catalog.cases.get(name)
    model = name
    task = None
    if case is not None:
        model = case.workload.model
        task = case.workload.task
    elif not any(row.model == name for row in published):
        raise _unknown_model(name, published, catalog)
    device, gpus = _device_and_count(on, gpus, catalog)
    wanted = wanted_conditions(case, device, gpus)
    rows_of_model = [row for row in published if row.model == model]
    rows_of_model.sort(key=lambda row: _distance(row, wanted, device, catalog))
    rows_of_device = []
    possible_rows = []
    rows_of_other_devices = []
    for row in rows_of_model:
        if row.device_id == device.id:
            rows_of_device.append(row)
        elif task is not None and row.task != task:
            continue
        elif device.id in row.may_be:
            possible_rows.append(row)
        else:
            rows_of_other_devices.append(row)
    cases = _cases_of(model, task, device, gpus, catalog)
    return PublishedResults(
        name=name,
        model=model,
        task=task,
        device=device,
        wanted=wanted,
        rows_of_device=tuple(rows_of_device),
        possible_rows=tuple(possible_rows),
        rows_of_other_devices=tuple(rows_of_other_devices),
        cases=tuple(cases.fitting),
        too_large=tuple(cases.too_large),
        to_plan=tuple(cases.to_plan),
    )


def _unknown_model(name: str, published: Sequence[PublishedRow], catalog: Catalog) -> UnknownNameError:
    names = set(catalog.cases)
    for row in published:
        names.add(row.model)
    remedy = f"name one of {', '.join(sorted(names))}"
    close = near_names(name, sorted(names))
    if close:
        remedy = f"did you mean {' or '.join(close)}?"
    return UnknownNameError(f"there is no case and no published row of '{name}'", remedy=remedy)


def _device_and_count(on: str | None, gpus: int | None, catalog: Catalog) -> tuple[DeviceModel, int | None]:
    """Return the device that was named, else that of this machine, and how many there are; None for any number.

    Raises FlagbenchError (USAGE) for an unknown device, or if none was named and this machine has none.
    """
    if on is not None:
        return find_device(on, catalog), gpus
    machine = this_machine()
    devices = find_device_models(machine, catalog)
    if not devices:
        raise FlagbenchError(
            "this machine has no accelerator that flagbench knows",
            remedy="name a device, for example --on h100-sxm",
        )
    return devices[0], gpus or machine.visible or None


class _Cases(NamedTuple):
    """The cases that run a model, as the fields of PublishedResults have them."""

    fitting: list[str]
    too_large: list[str]
    to_plan: list[str]


def _cases_of(model: str, task: str | None, device: DeviceModel, gpus: int | None, catalog: Catalog) -> _Cases:
    """Return the cases that run a model on a device; `task` is that of the case that was asked for, None for any."""
    cases = _Cases([], [], [])
    for name, case in catalog.cases.items():
        if case.workload.model != model and not name.startswith(f"{model}-"):
            continue
        if task is not None and case.workload.task != task:
            continue
        preset = preset_of(case.presets, "reference")
        memory = measured_memory(case, preset, case.default_precision, gpus)
        if memory is not None and memory.gib > device.memory_gib:
            cases.too_large.append(lacking(case, memory, device.memory_gib, gpus))
            continue
        cases.fitting.append(name)
        if memory is None and can_be_split(case):
            command = f"flagbench plan {name} --gpus {gpus or _PLANNED_GPUS} --mem {device.memory_gib:g}"
            cases.to_plan.append(f"`{command}` computes that of {name}")
    return cases


def find_device(name: str, catalog: Catalog) -> DeviceModel:
    """Return the device with an id, the unique beginning of an id, or a name that the driver reports.

    The name of the vendor may be left out. Raises UnknownNameError (USAGE).
    """
    lower_name = name.lower()
    devices = catalog.devices.values()
    matching = tuple(device for device in devices if _is_named(device, lower_name))
    if not matching:
        matching = devices_named(lower_name, devices)
    if not matching:
        return catalog_get(catalog.devices, name, kind="device")  # by the beginning of an id, or it raises the error
    if len(matching) > 1:
        ids = " or ".join(device.id for device in matching)
        remedy = f"did you mean {ids}? `flagbench list devices` shows the name that the driver has of each"
        raise UnknownNameError(f"'{name}' is the beginning of several devices", remedy=remedy)
    return matching[0]


def _is_named(device: DeviceModel, name: str) -> bool:
    """Return whether a name in lower case is that of a device, with or without the vendor before the first space."""
    for device_name in (device.id, device.name, *device.match):
        lower_name = device_name.lower()
        _, _, without_vendor = lower_name.partition(" ")
        if name in (lower_name, without_vendor):
            return True
    return False


def _distance(
    row: PublishedRow, wanted: Mapping[str, Scalar], device: DeviceModel, catalog: Catalog
) -> tuple[object, ...]:
    """Return a sort key by which the nearest row comes first.

    Rows of the wanted task and with a speed come before all others, then those with fewer differing conditions, then
    those whose device has the most similar peak, then those with the most similar number of devices.
    """
    names = [condition.name for condition in differing(row, wanted)]
    difference_in_devices = 0
    gpus = wanted.get("devices")
    devices = row.count("devices")
    if devices is not None and isinstance(gpus, int):
        difference_in_devices = abs(devices - gpus)
    return (
        "task" in names,
        row.speed is None,
        len(names),
        _ratio_of_peaks(row, device, catalog),
        difference_in_devices,
    )


def _ratio_of_peaks(row: PublishedRow, device: DeviceModel, catalog: Catalog) -> float:
    """Return the larger peak of a row's device and `device` over the smaller one; infinite if one is unknown."""
    device_of_row = catalog.devices.get(row.device_id or "")
    if device_of_row is None:
        return math.inf
    peak = device.peak(row.precision_label)
    peak_of_row = device_of_row.peak(row.precision_label)
    if not peak or not peak_of_row:
        return math.inf
    return max(peak, peak_of_row) / min(peak, peak_of_row)


def _document(row: PublishedRow, wanted: Mapping[str, Scalar]) -> dict[str, Any]:
    """Return a row as a JSON object, with the wanted conditions that differ from it."""
    case = None
    if isinstance(row, Claim):
        case = row.case
    metrics = []
    for metric in row.metrics:
        metrics.append({"name": metric.name, "value": metric.digits, "unit": metric.unit})
    differs = []
    for condition in differing(row, wanted):
        differs.append({"name": condition.name, "here": condition.here, "published": condition.expected})
    return {
        "id": row.id,
        "case": case,
        "source": row.citation,
        "may_be": row.may_be,
        "model": row.model,
        "task": row.task,
        "device": row.device,
        "device_id": row.device_id,
        "precision": row.precision_label,
        "devices": row.count("devices"),
        "nodes": row.count("nodes"),
        "batch": row.batch,
        "sequence": row.text("sequence_length"),
        "parallelism": row.text("layout"),
        "software": row.software,
        "file": row.file,
        "section": row.section,
        "conditions": row.remarks,
        "metrics": metrics,
        "differs": differs,
    }
