"""What `expect` answers: rows of a device, rows that come closest, and cases that run them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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

_BRIEF_ROWS = 8
"""Most rows of the table without --wide."""
_COLUMNS = ("ROW", "DEVICE", "GPUS", "TASK", "PRECISION", "BATCH, SEQUENCE", "PUBLISHED", "DIFFERS")
_DROP: tuple[str, ...] = ("BATCH, SEQUENCE",)
_BELOW: tuple[str, ...] = ("DIFFERS", "DEVICE", "PRECISION", "GPUS")
"""The columns that a narrow terminal leaves out, and then those that it shows under each row, the first one first."""


@dataclass(frozen=True)
class Answer:
    """What has been published of a model for a device."""

    name: str
    """The case or model that was asked for."""
    model: str
    task: str | None
    """The task of the case; None for a model, which means every task."""
    device: DeviceModel
    wanted: Mapping[str, Scalar]
    rows: tuple[PublishedRow, ...]
    """Rows of this device, those with the fewest differing conditions first."""
    may_be: tuple[PublishedRow, ...]
    """Rows of the same task for a name that several devices have, this one among them."""
    others: tuple[PublishedRow, ...]
    """Rows of other devices and the same task, the nearest first."""
    cases: tuple[str, ...]
    """Cases that run the model, without those that took more memory than the device has."""
    too_large: tuple[str, ...]
    """For each case left out: the memory it took, and what needs less."""
    to_plan: tuple[str, ...]
    """For each case that can be split and whose memory was not measured: the command that computes it."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "asked": self.name,
            "model": self.model,
            "task": self.task,
            "wanted": self.wanted,
            "cases": self.cases,
            "device": self.device.id,
            "rows": [_document(row, self.wanted) for row in self.rows],
            "nearest": [_document(row, self.wanted) for row in (*self.may_be, *self.others)],
        }

    @property
    def of_task(self) -> list[PublishedRow]:
        """Rows of this device and the task."""
        return [row for row in self.rows if self.task in (None, row.task)]

    @property
    def of_other_tasks(self) -> list[PublishedRow]:
        """Rows of this device and other tasks."""
        of_task = self.of_task
        return [row for row in self.rows if row not in of_task]

    @property
    def nearest_by_task(self) -> dict[str, PublishedRow]:
        """The nearest row of each task; of this device where it has one."""
        nearest: dict[str, PublishedRow] = {}
        for row in (*self.of_task, *self.may_be, *self.others):
            nearest.setdefault(row.task, row)
        return nearest

    @property
    def listed(self) -> list[PublishedRow]:
        """The rows in the order of the table with --wide: of a model, the nearest row of each task comes first."""
        rows = [*self.of_task, *self.may_be, *self.others, *self.of_other_tasks]
        if self.task is not None:
            return rows
        return self._with_nearest_first(rows)

    @property
    def listed_in_brief(self) -> list[PublishedRow]:
        """The first rows of the table without --wide: rows of other devices only where this one has none."""
        rows = [*self.of_task, *self.may_be]
        if not rows:
            rows += self.others
        rows += self.of_other_tasks
        if self.task is None:
            rows = self._with_nearest_first(rows)
        return rows[:_BRIEF_ROWS]

    def _with_nearest_first(self, rows: Sequence[PublishedRow]) -> list[PublishedRow]:
        nearest = list(self.nearest_by_task.values())
        return [*nearest, *(row for row in rows if row not in nearest)]

    def page(self, *, wide: bool) -> list[Block]:
        """The answer as a sentence, the table of rows, and what to run."""
        rows, details = self.listed_in_brief, []
        if wide:
            rows = self.listed
            details = [f"{row.id}: {_details(row)}" for row in rows]
        return [
            Lines((self.sentence,)),
            self._table(rows, wide=wide),
            Lines(tuple(self._notes(len(self.listed) - len(rows)))),
            Lines(tuple(details)),
        ]

    def _table(self, rows: Sequence[PublishedRow], *, wide: bool) -> Table:
        drop, below = _DROP, _BELOW
        if self.task is None:
            below = ("TASK", *below)
        else:
            drop = (*drop, "TASK")  # rows of another task say so under DIFFERS
        cells = [self._cells(row, wide=wide) for row in rows]
        return Table(_COLUMNS, cells, right=frozenset(("GPUS",)), drop=drop, below=below)

    def _notes(self, left_out: int) -> list[str]:
        """How many rows are left out, what to run, and where memory is not known or not sufficient."""
        notes = []
        if left_out:
            notes.append(f"rows that --wide adds: {left_out}")
        to_run = []
        if self.cases:
            to_run.append(f"flagbench runs it as: {', '.join(self.cases)}")
        claims = [row.id for row in self.of_task if isinstance(row, Claim)]
        if claims:
            to_run.append(f"a row, with its settings: `flagbench reproduce {claims[0]}`")
        if to_run:
            notes.append("; ".join(to_run))
        for text in self.to_plan:
            notes.append(f"memory was not measured: {text}")
        for text in self.too_large:
            notes.append(f"more memory is needed: {text}")
        return notes

    @property
    def sentence(self) -> str:
        """The answer as a sentence."""
        subject = self.model
        if self.task is not None:
            subject = f"{self.name}, {self.task},"
        certain, possible = len(self.of_task), len(self.may_be)
        if certain == 0:
            sentence = f"No published row is of {subject} on {self.device.name}"
            if possible:
                sentence += f" for certain, and {possible} may be"
            return f"{sentence}; {self._nearest_text()}."
        rows = "published rows are"
        if certain == 1:
            rows = "published row is"
        sentence = f"{certain} {rows} of {subject} on {self.device.name}"
        if possible:
            sentence += f", and {possible} more may be"
        return f"{sentence}; {self._nearest_text()}."

    def _nearest_text(self) -> str:
        nearest = [*self.of_task, *self.may_be, *self.others]
        if not nearest:
            return "nor on any other device"
        return f"the nearest is {_described(nearest[0])}"

    def _cells(self, row: PublishedRow, *, wide: bool) -> tuple[str, ...]:
        conditions = differing(row, self.wanted)
        if wide:
            differs = "; ".join(map(describe, conditions))
        else:
            differs = ", ".join(condition.name for condition in conditions)
        shape = row.batch
        sequence = row.text("sequence_length")
        if sequence:
            shape = f"{row.batch or '-'}, {sequence}"
        return (
            row.id,
            row.device,
            str(row.count("devices") or ""),
            row.task,
            row.precision_label or "",
            shape,
            _speed(row),
            differs,
        )


def answer(name: str, on: str | None, gpus: int | None, catalog: Catalog) -> Answer:
    """What is published of a case or model. Raises FlagbenchError (usage) for an unknown model or device."""
    published = published_rows(catalog)
    case = catalog.cases.get(name)
    model, task = name, None
    if case is not None:
        model, task = case.workload.model, case.workload.task
    elif not any(row.model == name for row in published):
        raise _unknown_model(name, published, catalog)
    device, gpus = _device_and_count(on, gpus, catalog)
    wanted = wanted_conditions(case, device, gpus)
    of_model = [row for row in published if row.model == model]
    of_model.sort(key=lambda row: _distance(row, wanted, device, catalog))
    rows, may_be, others = [], [], []
    for row in of_model:
        if row.device_id == device.id:
            rows.append(row)
        elif task is not None and row.task != task:
            continue
        elif device.id in row.may_be:
            may_be.append(row)
        else:
            others.append(row)
    runs, too_large, to_plan = _cases_of(model, task, device, gpus, catalog)
    return Answer(
        name=name,
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
    """The device that was named, else that of this machine, and how many of it.

    Raises FlagbenchError (usage) for an unknown device, and without a name where this machine has none.
    """
    if on is not None:
        return find_device(on, catalog), gpus
    machine = this_machine()
    devices = cards_here(machine, catalog)
    if not devices:
        raise FlagbenchError(
            "this machine has no accelerator that flagbench knows",
            remedy="name a device, for example --on h100-sxm",
        )
    return devices[0], gpus or machine.visible or None


def _cases_of(
    model: str, task: str | None, device: DeviceModel, gpus: int | None, catalog: Catalog
) -> tuple[list[str], list[str], list[str]]:
    """The cases that run a model on a device, then the texts of `too_large` and `to_plan` of an Answer.

    `task`: of the case that was asked for; None for any.
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

    wanted = name.lower()
    devices = catalog.devices.values()
    matching = tuple(device for device in devices if _is_named(device, wanted)) or devices_named(wanted, devices)
    if not matching:
        return catalog_get(catalog.devices, name, kind="device")
    if len(matching) > 1:
        ids = " or ".join(device.id for device in matching)
        remedy = f"did you mean {ids}? `flagbench list devices` shows the name that the driver has of each"
        raise UnknownNameError(f"'{name}' is the beginning of several devices", remedy=remedy)
    return matching[0]


def _is_named(device: DeviceModel, name: str) -> bool:
    """Whether a device has that name, in lower case, also where it leaves out the vendor before the first space."""
    for text in (device.id, device.name, *device.match):
        whole = text.lower()
        _, _, without_vendor = whole.partition(" ")
        if name in (whole, without_vendor):
            return True
    return False


def _distance(
    row: PublishedRow, wanted: Mapping[str, Scalar], device: DeviceModel, catalog: Catalog
) -> tuple[object, ...]:
    """A sort key: task and speed first, then the number of differing conditions, then peak and number of devices."""
    names = [condition.name for condition in differing(row, wanted)]
    apart = 0
    gpus, devices = wanted.get("devices"), row.count("devices")
    if devices is not None and isinstance(gpus, int):
        apart = abs(devices - gpus)
    return "task" in names, row.speed is None, len(names), _ratio_of_peaks(row, device, catalog), apart


def _ratio_of_peaks(row: PublishedRow, device: DeviceModel, catalog: Catalog) -> float:
    """The ratio of the peaks of a row's device and of `device`, at least 1; infinite where one is not published."""
    device_of_row = catalog.devices.get(row.device_id or "")
    if device_of_row is None:
        return math.inf
    peak, peak_of_row = device.peak(row.precision_label), device_of_row.peak(row.precision_label)
    if not peak or not peak_of_row:
        return math.inf
    return max(peak, peak_of_row) / min(peak, peak_of_row)


def _described(row: PublishedRow) -> str:
    """`12,473 tokens/s on 8 x H100 SXM, pretraining, fp8 (ROW)`."""
    device = row.device
    devices = row.count("devices")
    if devices:
        device = f"{devices} x {device}"
    text = f"{_speed(row)} on {device}"
    if row.task:
        text += f", {row.task}"
    if row.precision_label:
        text += f", {row.precision_label}"
    return f"{text} ({row.id})"


def _speed(row: PublishedRow) -> str:
    """The speed as printed, with its unit; for a row without a speed, its first metric with its name."""
    metric = row.speed or row.metrics[0]
    number = metric.digits
    if len(number) > 9:
        number = f"{metric.value:.4g}"
    text = f"{number} {metric.unit}"
    if metric.name.endswith("_per_device"):
        text += "/device"
    if row.speed is None:
        return f"{metric.name} {text}"
    return text


def _details(row: PublishedRow) -> str:
    """What the cells of a row do not show, and its source."""
    details = (row.text("layout"), row.software, row.remarks, row.citation)
    return "; ".join(detail for detail in details if detail)


def _document(row: PublishedRow, wanted: Mapping[str, Scalar]) -> dict[str, Any]:
    """A row as JSON."""
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
