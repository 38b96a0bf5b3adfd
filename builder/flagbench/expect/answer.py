"""What `expect` answers: rows of a device, rows that come closest, cases that run them, and an estimate."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flagbench.devices import this_machine
from flagbench.errors import FlagbenchError
from flagbench.expect.estimate import Estimate, estimate, leave_one_out, peaks_apart
from flagbench.expect.rows import PublishedRow, published_rows, wanted_conditions
from flagbench.manifests.catalogue import CaseOfModel, peak_of, read_cases, read_catalogue
from flagbench.manifests.lookup import UnknownNameError, catalog_get, near_names
from flagbench.manifests.model import Case, Catalog, DeviceModel, Scalar
from flagbench.page import Block, Lines, Table
from flagbench.verdict.conditions import describe

NEAREST = 5
"""Rows of other devices that are named."""
_SHOWN = 8
"""Rows of this device that a table shows without --wide."""
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
    rows: tuple[PublishedRow, ...]
    """Of this device, the fewest differing conditions first."""
    nearest: tuple[PublishedRow, ...]
    """Of other devices."""
    cases: tuple[str, ...]
    """Cases that run the model."""
    estimate: Estimate | str | None
    """Or why there is none; None where a row of this device has the task."""

    @property
    def fitting(self) -> tuple[PublishedRow, ...]:
        """The rows of this device that have the task."""
        return tuple(row for row in self.rows if self.task in (None, row.task))

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        names = ("asked", "model", "task", "wanted", "cases")
        return {
            **{name: getattr(self, name) for name in names},
            "device": self.device.id,
            "rows": [row.to_dict(self.wanted) for row in self.rows],
            "nearest": [row.to_dict(self.wanted) for row in self.nearest],
            "estimate": asdict(self.estimate) if isinstance(self.estimate, Estimate) else None,
            "no_estimate": self.estimate if isinstance(self.estimate, str) else None,
        }

    def page(self, *, wide: bool) -> list[Block]:
        """The answer in a sentence, the rows, and what can be run."""
        others = () if self.fitting and not wide else self.nearest
        found = [*self.rows, *others] if self.fitting else [*others, *self.rows]
        shown = found if wide else found[:_SHOWN]
        columns = ("ROW", "DEVICE", "GPUS", "TASK", "PRECISION", "BATCH, SEQUENCE", "PUBLISHED", "DIFFERS")
        table = [self._cells(row, wide=wide) for row in shown]
        left = len(found) - len(shown)
        notes = [f"rows that --wide adds: {left}"] if left else []
        if isinstance(self.estimate, str):
            notes.append(f"no estimate: {self.estimate}")
        if isinstance(self.estimate, Estimate) and wide:
            ratio = f"the ratio of the {self.estimate.precision} peaks is {self.estimate.factor:.3f}"
            notes.append(f"{ratio}; tried on {self.estimate.tried} published rows, each left out once")
        if self.cases:
            notes.append(f"flagbench runs it as: {', '.join(self.cases)}")
        sources = [f"{row.id}: {row.source}" for row in shown] if wide else []
        return [
            Lines((self.sentence,)),
            Table(columns, table, right=frozenset(("GPUS",)), cut=("DIFFERS", "DEVICE"), drop=_DROP),
            Lines(tuple(notes)),
            Lines(tuple(sources)),
        ]

    @property
    def sentence(self) -> str:
        """The answer."""
        what = f"{self.asked}, {self.task}," if self.task else self.model
        if self.fitting:
            row = self.fitting[0]
            count = f"{len(self.fitting)} published row{'s are' if len(self.fitting) > 1 else ' is'}"
            return f"{count} of {what} on {self.device.name}; the nearest has {_speed(row)} ({row.id})."
        none = f"No published row is of {what} on {self.device.name}"
        if isinstance(self.estimate, Estimate):
            one = self.estimate
            each = "/device" if one.metric.endswith("_per_device") else ""
            about = f"about {one.value:.4g} {one.unit}{each} in {one.precision}, median error {one.error:.0%}"
            return f"{none}; estimated from {one.device} ({one.source}): {about}."
        return (
            f"{none}; the nearest is {_speed(self.nearest[0])} on {self.nearest[0].device}."
            if self.nearest
            else f"{none}."
        )

    def _cells(self, row: PublishedRow, *, wide: bool) -> tuple[str, ...]:
        results = row.differing(self.wanted)
        differs = "; ".join(map(describe, results)) if wide else ", ".join(result.name for result in results)
        shape = ", ".join(filter(None, (row.batch, row.sequence)))
        return row.id, row.device, str(row.devices or ""), row.task, row.precision or "", shape, _speed(row), differs


def answer(asked: str, on: str | None, gpus: int | None, catalog: Catalog) -> Answer:
    """What is published of a case or model. Raises FlagbenchError (usage) for an unknown model or device."""
    cases = read_cases(catalog.root)
    rows = published_rows(read_catalogue(catalog.root), cases, catalog)
    model, case = _model_of(asked, rows, cases, catalog)
    task = cases[case.name].task if case is not None and case.name in cases else None
    device = _device_here(catalog) if on is None else find_device(on, catalog)
    if on is None and gpus is None:
        gpus = this_machine().visible or None
    wanted = wanted_conditions(case, task, device, gpus)
    of_model = [row for row in rows if row.model == model]
    same_task = [row for row in of_model if task in (None, row.task)]
    here = sorted(
        (row for row in of_model if row.device_id == device.id), key=lambda row: _distance(row, wanted, device)
    )
    near = sorted(
        (row for row in same_task if row.device_id != device.id), key=lambda row: _distance(row, wanted, device)
    )
    fits = any(task in (None, row.task) for row in here)
    run = {row.precision for row in rows if row.device_id == device.id}
    return Answer(
        asked=asked,
        model=model,
        task=task,
        device=device,
        wanted=wanted,
        rows=tuple(here),
        nearest=tuple(near[:NEAREST]),
        cases=tuple(name for name, of in cases.items() if of.model == model),
        estimate=None if fits else estimate(near, device, leave_one_out(same_task), run),
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


def _model_of(
    asked: str, rows: Sequence[PublishedRow], cases: Mapping[str, CaseOfModel], catalog: Catalog
) -> tuple[str, Case | None]:
    if asked in catalog.cases:
        return cases[asked].model if asked in cases else asked, catalog.cases[asked]
    models = sorted({*catalog.cases, *(row.model for row in rows)})
    if asked not in models:
        close = near_names(asked, models)
        remedy = f"did you mean {' or '.join(close)}?" if close else f"name one of {', '.join(models)}"
        raise UnknownNameError(f"there is no case and no published row of '{asked}'", remedy=remedy)
    return asked, None


def _distance(row: PublishedRow, wanted: Mapping[str, Scalar], device: DeviceModel) -> tuple[object, ...]:
    """The task and a speed first, then how many conditions differ, how many devices, how far the peak is, the id."""
    names = [result.name for result in row.differing(wanted)]
    gpus = wanted.get("devices")
    apart = abs(row.devices - gpus) if row.devices is not None and isinstance(gpus, int) else 0
    by_number = re.sub(r"\d+", lambda found: found[0].zfill(6), row.id)
    peak = peak_of(device, row.precision)
    return "task" in names, row.rate is None, len(names), apart, peaks_apart(row, peak), by_number


def _speed(row: PublishedRow) -> str:
    value, unit = row.metrics[row.speed]
    number = f"{float(value):.4g}" if len(value) > 9 else value
    name = "" if "/s" in unit else f"{row.speed} "
    return f"{name}{number} {unit}{'/device' if row.speed.endswith('_per_device') else ''}"
