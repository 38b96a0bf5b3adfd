"""What `expect` answers: rows of a device, rows that come closest, and cases that run them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flagbench.console.page import Block, Lines, Table
from flagbench.errors import FlagbenchError
from flagbench.expect.memory import lacking, measured_memory
from flagbench.expect.rows import Entry, published, wanted_conditions
from flagbench.machine.catalog import cards_here
from flagbench.machine.devices import this_machine
from flagbench.manifests.device import DeviceModel
from flagbench.manifests.fields import Scalar
from flagbench.manifests.lookup import UnknownNameError, catalog_get, devices_named, near_names
from flagbench.manifests.model import Catalog
from flagbench.manifests.settings import preset_of
from flagbench.verdict.conditions import describe

_SHOWN = 8
"""Rows that a table shows without --wide."""
_COLUMNS = ("ROW", "DEVICE", "GPUS", "TASK", "PRECISION", "BATCH, SEQUENCE", "PUBLISHED", "DIFFERS")
_DROP: tuple[str, ...] = ("BATCH, SEQUENCE",)
_BELOW: tuple[str, ...] = ("DIFFERS", "DEVICE", "PRECISION", "GPUS")
"""The columns that a narrow terminal leaves out, and then those that it shows under each row, the first one first."""


@dataclass(frozen=True)
class Answer:
    """What has been published of a model for a device."""

    asked: str
    model: str
    task: str | None
    """Of a case; None for a model, of which every task is meant."""
    device: DeviceModel
    wanted: Mapping[str, Scalar]
    rows: tuple[Entry, ...]
    """Of this device, the fewest differing conditions first."""
    may_be: tuple[Entry, ...]
    """Of this device or another one that has the publisher's name, and the same task."""
    others: tuple[Entry, ...]
    """Of other devices and the same task, those that come closest."""
    cases: tuple[str, ...]
    """Cases that run the model, without those that took more memory than the device has."""
    too_large: tuple[str, ...]
    """Of each of those, what it took, and what needs less."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        names = ("asked", "model", "task", "wanted", "cases")
        return {
            **{name: getattr(self, name) for name in names},
            "device": self.device.id,
            "rows": [entry.to_dict(self.wanted) for entry in self.rows],
            "nearest": [entry.to_dict(self.wanted) for entry in (*self.may_be, *self.others)],
        }

    @property
    def of_task(self) -> list[Entry]:
        """Rows of this device and the task."""
        return [entry for entry in self.rows if self.task in (None, entry.row.task)]

    @property
    def first_of_each_task(self) -> list[Entry]:
        """The row of each task that comes closest, of this device where it has one."""
        firsts: dict[str, Entry] = {}
        for entry in (*self.of_task, *self.may_be, *self.others):
            firsts.setdefault(entry.row.task, entry)
        return list(firsts.values())

    def page(self, *, wide: bool) -> list[Block]:
        """The answer in a sentence, the rows, and what can be run."""
        of_device = [*self.of_task, *self.may_be]
        of_other_tasks = [entry for entry in self.rows if entry not in self.of_task]
        every = [*of_device, *self.others, *of_other_tasks]
        found = every if wide or not of_device else [*of_device, *of_other_tasks]
        if self.task is None:
            firsts = self.first_of_each_task
            found = [*firsts, *(entry for entry in found if entry not in firsts)]
        shown = found if wide else found[:_SHOWN]
        left = len(every) - len(shown)
        notes = [f"rows that --wide adds: {left}"] if left else []
        to_run = []
        if self.cases:
            to_run.append(f"flagbench runs it as: {', '.join(self.cases)}")
        claims = [entry.id for entry in self.of_task if entry.case]
        if claims:
            to_run.append(f"a row, with its settings: `flagbench reproduce {claims[0]}`")
        if to_run:
            notes.append("; ".join(to_run))
        notes += [f"more memory is needed: {text}" for text in self.too_large]
        cells = [self._cells(entry, wide=wide) for entry in shown]
        drop, below = _DROP, _BELOW
        if self.task is None:
            below = ("TASK", *below)
        else:
            drop = (*drop, "TASK")  # all rows are of one task, but for those that say so under DIFFERS
        return [
            Lines((self.sentence,)),
            Table(_COLUMNS, cells, right=frozenset(("GPUS",)), drop=drop, below=below),
            Lines(tuple(notes)),
            Lines(tuple(f"{entry.id}: {entry.details}" for entry in shown) if wide else ()),
        ]

    @property
    def sentence(self) -> str:
        """The answer."""
        what = f"{self.asked}, {self.task}," if self.task else self.model
        sure, may_be = self.of_task, self.may_be
        first = next(iter([*sure, *may_be, *self.others]), None)
        nearest = "nor on any other device" if first is None else f"the nearest is {_described(first)}"
        if sure:
            count = f"{len(sure)} published row{'s are' if len(sure) > 1 else ' is'}"
            more = f", and {len(may_be)} more may be" if may_be else ""
            return f"{count} of {what} on {self.device.name}{more}; {nearest}."
        none = f"No published row is of {what} on {self.device.name}"
        if may_be:
            return f"{none} for certain, and {len(may_be)} may be; {nearest}."
        return f"{none}; {nearest}."

    def _cells(self, entry: Entry, *, wide: bool) -> tuple[str, ...]:
        results, row = entry.differing(self.wanted), entry.row
        differs = "; ".join(map(describe, results)) if wide else ", ".join(result.name for result in results)
        shape = f"{row.batch or '-'}, {row.sequence}" if row.sequence else row.batch
        what = (entry.id, row.device, str(row.devices or ""), row.task, row.precision or "", shape)
        return *what, _speed(entry), differs


def answer(asked: str, on: str | None, gpus: int | None, catalog: Catalog) -> Answer:
    """What is published of a case or model. Raises FlagbenchError (usage) for an unknown model or device."""
    entries, case = published(catalog), catalog.cases.get(asked)
    model, task = (asked, None) if case is None else (case.workload.model, case.workload.task)
    models = sorted({*catalog.cases, *(entry.row.model for entry in entries)})
    if asked not in models:
        close = near_names(asked, models)
        remedy = f"did you mean {' or '.join(close)}?" if close else f"name one of {', '.join(models)}"
        raise UnknownNameError(f"there is no case and no published row of '{asked}'", remedy=remedy)
    if on is not None:
        device = find_device(on, catalog)
    elif here := cards_here(this_machine(), catalog):
        device, gpus = here[0], gpus or this_machine().visible or None
    else:
        what = "this machine has no accelerator that flagbench knows"
        raise FlagbenchError(what, remedy="name a device, for example --on h100-sxm")
    wanted = wanted_conditions(case, task, device, gpus)
    of_model = [entry for entry in entries if entry.row.model == model]
    of_model.sort(key=lambda entry: _distance(entry, wanted, device, catalog))
    same_task = [entry for entry in of_model if task in (None, entry.row.task)]
    rows = [entry for entry in of_model if entry.row.device_id == device.id]
    may_be = [entry for entry in same_task if device.id in entry.may_be]
    others = [entry for entry in same_task if entry not in rows and entry not in may_be]
    runs, too_large = _cases_of(model, device, gpus, catalog)
    return Answer(
        asked=asked,
        model=model,
        task=task,
        device=device,
        wanted=wanted,
        rows=tuple(rows),
        may_be=tuple(may_be),
        others=tuple(others),
        cases=tuple(runs),
        too_large=tuple(too_large),
    )


def _cases_of(model: str, device: DeviceModel, gpus: int | None, catalog: Catalog) -> tuple[list[str], list[str]]:
    """The cases that run a model on a device; and of those that took more memory than it has, what they took."""
    runs, too_large = [], []
    for name, case in catalog.cases.items():
        if case.workload.model != model and not name.startswith(f"{model}-"):
            continue
        memory = measured_memory(case, preset_of(case, "reference"), case.default_precision, gpus)
        if memory is None or memory.gib <= device.memory_gib:
            runs.append(name)
        else:
            too_large.append(lacking(case, memory, device.memory_gib, gpus))
    return runs, too_large


def find_device(name: str, catalog: Catalog) -> DeviceModel:
    """The device of an id, its unique beginning, or a name that its driver reports, also without the vendor's.

    Raises UnknownNameError (usage).
    """

    def is_named(text: str) -> bool:
        return name.lower() in (text.lower(), text.lower().partition(" ")[2])

    devices = catalog.devices.values()
    exact = [device for device in devices if any(map(is_named, (device.id, device.name, *device.match)))]
    found = exact or devices_named(name.lower(), devices)
    return found[0] if len(found) == 1 else catalog_get(catalog.devices, name, kind="device")


def _distance(
    entry: Entry, wanted: Mapping[str, Scalar], device: DeviceModel, catalog: Catalog
) -> tuple[object, ...]:
    """The task and a speed first, then how many conditions differ, how far the peak is, how many devices."""
    names = [result.name for result in entry.differing(wanted)]
    gpus, devices = wanted.get("devices"), entry.row.devices
    apart = abs(devices - gpus) if devices is not None and isinstance(gpus, int) else 0
    ratio = math.inf
    other = catalog.devices.get(entry.row.device_id or "")
    peak, other_peak = device.peak(entry.row.precision), other and other.peak(entry.row.precision)
    if peak and other_peak:
        ratio = max(peak, other_peak) / min(peak, other_peak)
    return "task" in names, entry.speed is None, len(names), ratio, apart


def _described(entry: Entry) -> str:
    row = entry.row
    where = f"{row.devices} x {row.device}" if row.devices else row.device
    return f"{_speed(entry)} on {', '.join(filter(None, (where, row.task, row.precision)))} ({entry.id})"


def _speed(entry: Entry) -> str:
    metric = entry.speed or next(iter(entry.row.metrics))
    value, unit = entry.row.metrics[metric]
    number = f"{float(value):.4g}" if len(value) > 9 else value
    name = f"{metric} " if entry.speed is None else ""
    return f"{name}{number} {unit}{'/device' if metric.endswith('_per_device') else ''}"
