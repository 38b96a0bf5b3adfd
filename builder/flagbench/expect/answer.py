"""What `expect` answers: rows of a device, rows that come closest, cases that run them, and an estimate."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flagbench.devices import this_machine
from flagbench.errors import FlagbenchError
from flagbench.expect.estimate import Estimate, estimate, leave_one_out, peaks_apart
from flagbench.expect.rows import Entry, published, wanted_conditions
from flagbench.manifests.catalogue import peak_of, read_cases
from flagbench.manifests.lookup import UnknownNameError, catalog_get, near_names
from flagbench.manifests.model import Catalog, DeviceModel, Scalar
from flagbench.page import Block, Lines, Table
from flagbench.verdict.conditions import describe

NEAREST = 5
"""Rows of other devices that are named."""
_SHOWN = 8
"""Rows that a table shows without --wide."""
_COLUMNS = ("ROW", "DEVICE", "GPUS", "TASK", "PRECISION", "BATCH, SEQUENCE", "PUBLISHED", "DIFFERS")
_DROP = ("TASK", "PRECISION", "GPUS", "DEVICE")
"""The columns that a narrow terminal loses, the first one first."""


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
    nearest: tuple[Entry, ...]
    """Of other devices and the same task."""
    cases: tuple[str, ...]
    """Cases that run the model."""
    estimate: Estimate | str | None
    """Or why there is none; None where a row of this device has the task."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        names = ("asked", "model", "task", "wanted", "cases")
        return {
            **{name: getattr(self, name) for name in names},
            "device": self.device.id,
            "rows": [entry.to_dict(self.wanted) for entry in self.rows],
            "nearest": [entry.to_dict(self.wanted) for entry in self.nearest],
            "estimate": asdict(self.estimate) if isinstance(self.estimate, Estimate) else None,
            "no_estimate": self.estimate if isinstance(self.estimate, str) else None,
        }

    def page(self, *, wide: bool) -> list[Block]:
        """The answer in a sentence, the rows, and what can be run."""
        fits = self.estimate is None
        others = () if fits and not wide else self.nearest
        found = [*self.rows, *others] if fits else [*others, *self.rows]
        shown = found if wide else found[:_SHOWN]
        left = len(found) - len(shown)
        notes = [f"rows that --wide adds: {left}"] if left else []
        if isinstance(self.estimate, str):
            notes.append(f"no estimate: {self.estimate}")
        elif self.estimate is not None and wide:
            ratio = f"the ratio of the {self.estimate.precision} peaks is {self.estimate.factor:.3f}"
            notes.append(f"{ratio}; tried on {self.estimate.tried} published rows, each left out once")
        if self.cases:
            notes.append(f"flagbench runs it as: {', '.join(self.cases)}")
        cells = [self._cells(entry, wide=wide) for entry in shown]
        return [
            Lines((self.sentence,)),
            Table(_COLUMNS, cells, right=frozenset(("GPUS",)), cut=("DIFFERS", "DEVICE"), drop=_DROP),
            Lines(tuple(notes)),
            Lines(tuple(f"{entry.id}: {entry.source}" for entry in shown) if wide else ()),
        ]

    @property
    def sentence(self) -> str:
        """The answer."""
        what = f"{self.asked}, {self.task}," if self.task else self.model
        fitting = [entry for entry in self.rows if self.task in (None, entry.row.task)]
        if fitting:
            count = f"{len(fitting)} published row{'s are' if len(fitting) > 1 else ' is'}"
            nearest = f"{_speed(fitting[0])} ({fitting[0].id})"
            return f"{count} of {what} on {self.device.name}; the nearest has {nearest}."
        none = f"No published row is of {what} on {self.device.name}"
        if self.nearest and self.device.id in self.nearest[0].may_be:
            return f"{none} for certain; the nearest is {_speed(self.nearest[0])} on {self.nearest[0].row.device}."
        if isinstance(self.estimate, Estimate):
            one = self.estimate
            each = "/device" if one.metric.endswith("_per_device") else ""
            about = f"about {one.value:.4g} {one.unit}{each} in {one.precision}, median error {one.error:.0%}"
            return f"{none}; estimated from {one.device} ({one.source}): {about}."
        if not self.nearest:
            return f"{none}, nor on any other device."
        return f"{none}; the nearest is {_speed(self.nearest[0])} on {self.nearest[0].row.device}."

    def _cells(self, entry: Entry, *, wide: bool) -> tuple[str, ...]:
        results, row = entry.differing(self.wanted), entry.row
        differs = "; ".join(map(describe, results)) if wide else ", ".join(result.name for result in results)
        shape = ", ".join(filter(None, (row.batch, row.sequence)))
        what = (entry.id, row.device, str(row.devices or ""), row.task, row.precision or "", shape)
        return *what, _speed(entry), differs


def answer(asked: str, on: str | None, gpus: int | None, catalog: Catalog) -> Answer:
    """What is published of a case or model. Raises FlagbenchError (usage) for an unknown model or device."""
    cases, entries = read_cases(catalog), published(catalog)
    of, case = cases.get(asked), catalog.cases.get(asked)
    model, task = (asked, None) if of is None else (of.model, of.task)
    models = sorted({*catalog.cases, *(entry.row.model for entry in entries)})
    if asked not in models:
        close = near_names(asked, models)
        remedy = f"did you mean {' or '.join(close)}?" if close else f"name one of {', '.join(models)}"
        raise UnknownNameError(f"there is no case and no published row of '{asked}'", remedy=remedy)
    device = _device_here(catalog) if on is None else find_device(on, catalog)
    if on is None and gpus is None:
        gpus = this_machine().visible or None
    wanted = wanted_conditions(case, task, device, gpus)
    of_model = sorted((e for e in entries if e.row.model == model), key=lambda e: _distance(e, wanted, device))
    same_task = [entry for entry in of_model if task in (None, entry.row.task)]
    near = [entry for entry in same_task if entry.row.device_id != device.id]
    run = {entry.row.precision for entry in entries if entry.row.device_id == device.id}
    return Answer(
        asked=asked,
        model=model,
        task=task,
        device=device,
        wanted=wanted,
        rows=tuple(entry for entry in of_model if entry.row.device_id == device.id),
        nearest=tuple(near[:NEAREST]),
        cases=tuple(name for name, other in cases.items() if other.model == model),
        estimate=None if len(near) < len(same_task) else estimate(near, device, leave_one_out(same_task), run),
    )


def find_device(name: str, catalog: Catalog) -> DeviceModel:
    """The device of an id, its unique beginning, or a name that its driver reports, also without the vendor's.

    Raises UnknownNameError (usage).
    """

    def is_named(text: str) -> bool:
        return name.lower() in (text.lower(), text.lower().partition(" ")[2])

    devices = catalog.devices.values()
    exact = [device for device in devices if any(map(is_named, (device.id, device.name, *device.match)))]
    found = exact or [device for device in devices if device.id.startswith(f"{name.lower()}-")]
    return found[0] if len(found) == 1 else catalog_get(catalog.devices, name, kind="device")


def _device_here(catalog: Catalog) -> DeviceModel:
    for found in this_machine().devices:
        for device in catalog.devices.values():
            if found.name in (device.name, *device.match):
                return device
    raise FlagbenchError(
        "this machine has no accelerator that flagbench knows", remedy="name a device, for example --on h100-sxm"
    )


def _distance(entry: Entry, wanted: Mapping[str, Scalar], device: DeviceModel) -> tuple[object, ...]:
    """The task and a speed first, then how many conditions differ, how many devices, how far the peak is, the id."""
    names = [result.name for result in entry.differing(wanted)]
    gpus, devices = wanted.get("devices"), entry.row.devices
    apart = abs(devices - gpus) if devices is not None and isinstance(gpus, int) else 0
    by_number = re.sub(r"\d+", lambda found: found[0].zfill(6), entry.id)
    peak = peak_of(device, entry.row.precision)
    return "task" in names, entry.rate is None, len(names), apart, peaks_apart(entry, peak), by_number


def _speed(entry: Entry) -> str:
    value, unit = entry.row.metrics[entry.shown]
    number = f"{float(value):.4g}" if len(value) > 9 else value
    name = "" if "/s" in unit else f"{entry.shown} "
    return f"{name}{number} {unit}{'/device' if entry.shown.endswith('_per_device') else ''}"
