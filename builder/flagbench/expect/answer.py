"""What `expect` answers: rows of a device, rows that come closest, and cases that run them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flagbench.console.page import Block, Lines, Table
from flagbench.errors import FlagbenchError
from flagbench.expect.memory import lacking, measured_memory
from flagbench.expect.rows import differing, wanted_conditions
from flagbench.machine.catalog import cards_here
from flagbench.machine.devices import this_machine
from flagbench.manifests.device import DeviceModel
from flagbench.manifests.fields import Scalar
from flagbench.manifests.lookup import UnknownNameError, catalog_get, devices_named, near_names
from flagbench.manifests.model import Catalog
from flagbench.manifests.rows import Claim, PublishedRow, published_rows
from flagbench.verdict.conditions import describe
from flagbench_core.config import preset_of

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
    rows: tuple[PublishedRow, ...]
    """Of this device, the fewest differing conditions first."""
    may_be: tuple[PublishedRow, ...]
    """Of this device or another one that has the publisher's name, and the same task."""
    others: tuple[PublishedRow, ...]
    """Of other devices and the same task, those that come closest."""
    cases: tuple[str, ...]
    """Cases that run the model, without those that took more memory than the device has."""
    too_large: tuple[str, ...]
    """Of each of those, what it took, and what needs less."""
    to_plan: tuple[str, ...]
    """Of each case that can be split and whose memory was not measured, the command that computes it."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        names = ("asked", "model", "task", "wanted", "cases")
        return {
            **{name: getattr(self, name) for name in names},
            "device": self.device.id,
            "rows": [_document(row, self.wanted) for row in self.rows],
            "nearest": [_document(row, self.wanted) for row in (*self.may_be, *self.others)],
        }

    @property
    def of_task(self) -> list[PublishedRow]:
        """Rows of this device and the task."""
        return [row for row in self.rows if self.task in (None, row.task)]

    @property
    def first_of_each_task(self) -> list[PublishedRow]:
        """The row of each task that comes closest, of this device where it has one."""
        firsts: dict[str, PublishedRow] = {}
        for row in (*self.of_task, *self.may_be, *self.others):
            firsts.setdefault(row.task, row)
        return list(firsts.values())

    def page(self, *, wide: bool) -> list[Block]:
        """The answer in a sentence, the rows, and what can be run."""
        of_device = [*self.of_task, *self.may_be]
        of_other_tasks = [row for row in self.rows if row not in self.of_task]
        every = [*of_device, *self.others, *of_other_tasks]
        found = every if wide or not of_device else [*of_device, *of_other_tasks]
        if self.task is None:
            firsts = self.first_of_each_task
            found = [*firsts, *(row for row in found if row not in firsts)]
        shown = found if wide else found[:_SHOWN]
        left = len(every) - len(shown)
        notes = [f"rows that --wide adds: {left}"] if left else []
        to_run = []
        if self.cases:
            to_run.append(f"flagbench runs it as: {', '.join(self.cases)}")
        claims = [row.id for row in self.of_task if isinstance(row, Claim)]
        if claims:
            to_run.append(f"a row, with its settings: `flagbench reproduce {claims[0]}`")
        if to_run:
            notes.append("; ".join(to_run))
        notes += [f"memory was not measured: {text}" for text in self.to_plan]
        notes += [f"more memory is needed: {text}" for text in self.too_large]
        cells = [self._cells(row, wide=wide) for row in shown]
        drop, below = _DROP, _BELOW
        if self.task is None:
            below = ("TASK", *below)
        else:
            drop = (*drop, "TASK")  # rows of another task say so under DIFFERS
        return [
            Lines((self.sentence,)),
            Table(_COLUMNS, cells, right=frozenset(("GPUS",)), drop=drop, below=below),
            Lines(tuple(notes)),
            Lines(tuple(f"{row.id}: {_details(row)}" for row in shown) if wide else ()),
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

    def _cells(self, row: PublishedRow, *, wide: bool) -> tuple[str, ...]:
        results = differing(row, self.wanted)
        differs = "; ".join(map(describe, results)) if wide else ", ".join(result.name for result in results)
        sequence = row.text("sequence_length")
        shape = f"{row.batch or '-'}, {sequence}" if sequence else row.batch
        what = (row.id, row.device, str(row.count("devices") or ""), row.task, row.precision_label or "", shape)
        return *what, _speed(row), differs


def answer(asked: str, on: str | None, gpus: int | None, catalog: Catalog) -> Answer:
    """What is published of a case or model. Raises FlagbenchError (usage) for an unknown model or device."""
    published, case = published_rows(catalog), catalog.cases.get(asked)
    model, task = (asked, None) if case is None else (case.workload.model, case.workload.task)
    models = sorted({*catalog.cases, *(row.model for row in published)})
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
    wanted = wanted_conditions(case, device, gpus)
    of_model = [row for row in published if row.model == model]
    of_model.sort(key=lambda row: _distance(row, wanted, device, catalog))
    same_task = [row for row in of_model if task in (None, row.task)]
    rows = [row for row in of_model if row.device_id == device.id]
    may_be = [row for row in same_task if device.id in row.may_be]
    others = [row for row in same_task if row not in rows and row not in may_be]
    runs, too_large, to_plan = _cases_of(model, task, device, gpus, catalog)
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
        to_plan=tuple(to_plan),
    )


def _cases_of(
    model: str, task: str | None, device: DeviceModel, gpus: int | None, catalog: Catalog
) -> tuple[list[str], list[str], list[str]]:
    """The cases that run a model on a device; of those that took more memory than it has, what they took; of those
    that can be split and were not measured, how to compute it.

    `task`: that of the case that was asked for; None: any.
    """
    runs, too_large, to_plan = [], [], []
    for name, case in catalog.cases.items():
        if case.workload.model != model and not name.startswith(f"{model}-"):
            continue
        if task not in (None, case.workload.task):
            continue
        preset = preset_of(case.presets, "reference")
        memory = measured_memory(case, preset, case.default_precision, gpus)
        if memory is not None and memory.gib > device.memory_gib:
            too_large.append(lacking(case, memory, device.memory_gib, gpus))
            continue
        runs.append(name)
        if memory is None and "layout" in preset:
            command = f"flagbench plan {name} --gpus {gpus or 8} --mem {device.memory_gib:g}"
            to_plan.append(f"`{command}` computes that of {name}")
    return runs, too_large, to_plan


def find_device(name: str, catalog: Catalog) -> DeviceModel:
    """The device of an id, its unique beginning, or a name that its driver reports, also without the vendor's.

    Raises UnknownNameError (usage).
    """

    def is_named(text: str) -> bool:
        return name.lower() in (text.lower(), text.lower().partition(" ")[2])

    devices = catalog.devices.values()
    exact = [device for device in devices if any(map(is_named, (device.id, device.name, *device.match)))]
    found = exact or devices_named(name.lower(), devices)
    if len(found) > 1:
        ids = " or ".join(device.id for device in found)
        remedy = f"did you mean {ids}? `flagbench list devices` shows the name that the driver has of each"
        raise UnknownNameError(f"'{name}' is the beginning of several devices", remedy=remedy)
    return found[0] if found else catalog_get(catalog.devices, name, kind="device")


def _distance(
    row: PublishedRow, wanted: Mapping[str, Scalar], device: DeviceModel, catalog: Catalog
) -> tuple[object, ...]:
    """The task and a speed first, then how many conditions differ, how far the peak is, how many devices."""
    names = [result.name for result in differing(row, wanted)]
    gpus, devices = wanted.get("devices"), row.count("devices")
    apart = abs(devices - gpus) if devices is not None and isinstance(gpus, int) else 0
    ratio = math.inf
    other = catalog.devices.get(row.device_id or "")
    peak, other_peak = device.peak(row.precision_label), other and other.peak(row.precision_label)
    if peak and other_peak:
        ratio = max(peak, other_peak) / min(peak, other_peak)
    return "task" in names, row.speed is None, len(names), ratio, apart


def _described(row: PublishedRow) -> str:
    devices = row.count("devices")
    where = f"{devices} x {row.device}" if devices else row.device
    return f"{_speed(row)} on {', '.join(filter(None, (where, row.task, row.precision_label)))} ({row.id})"


def _speed(row: PublishedRow) -> str:
    value = row.speed or row.metrics[0]
    number = f"{value.value:.4g}" if len(value.digits) > 9 else value.digits
    name = f"{value.name} " if row.speed is None else ""
    return f"{name}{number} {value.unit}{'/device' if value.name.endswith('_per_device') else ''}"


def _details(row: PublishedRow) -> str:
    """What the cells of a row do not show, and its source."""
    return "; ".join(filter(None, (row.text("layout"), row.software, row.remarks, row.citation)))


def _document(row: PublishedRow, wanted: Mapping[str, Scalar]) -> dict[str, Any]:
    """A row as JSON."""
    return {
        "id": row.id,
        "case": row.case if isinstance(row, Claim) else None,
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
        "metrics": [{"name": m.name, "value": m.digits, "unit": m.unit} for m in row.metrics],
        "differs": [{"name": r.name, "here": r.here, "published": r.expected} for r in differing(row, wanted)],
    }
