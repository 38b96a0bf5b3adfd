"""A plan of a case on a number of devices: made, as a table for people, and as JSON for scripts."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flagbench.console.page import Block, Lines, Table
from flagbench.errors import FlagbenchError
from flagbench.image_reference import case_and_stack
from flagbench.manifests.lookup import catalog_get, resolve_image
from flagbench.manifests.model import Case, Catalog
from flagbench.manifests.stack import Stack
from flagbench.plan.layouts import GIB, TIGHT, LayoutRow, Planned, planned, rows, splits
from flagbench.plan.model import GPU, Step, memory_traits_of
from flagbench.runs.request import RunOptions, check_options
from flagbench_core.exit_codes import ExitCode

NODE = 8
"""Devices of a node by default, as in all published rows of several nodes."""
PREDICTION_ERROR = "The prediction is off by more than 10 % for 8 of 17 published rows, by 21 % at most."
"""As in the table of docs/plan.md."""


def _gib(count: int) -> str:
    return f"{count / GIB:.1f}"


def _fits_text(row: LayoutRow) -> str:
    if row.tight:
        return "tight"
    if row.fits:
        return "yes"
    return "no"


LAYOUT_COLUMNS: dict[str, Callable[[LayoutRow], str]] = {
    "TP": lambda row: str(row.layout.tp),
    "PP": lambda row: str(row.layout.pp),
    "DP": lambda row: str(row.layout.dp),
    "RECOMPUTE": lambda row: row.recompute,
    "BATCH": lambda row: str(row.global_batch),
    "IN USE": lambda row: _gib(row.memory.in_use),
    "FITS": _fits_text,
}
"""The columns of the table, each with its text for a layout; memory in GiB."""


@dataclass(frozen=True)
class MemoryPlan:
    """The layouts of a case on a number of devices, those that fit first."""

    planned: Planned
    stack: Stack | None
    options: RunOptions
    memory: float
    """GiB of a device."""
    rows: Sequence[LayoutRow]

    @property
    def first_fit(self) -> LayoutRow | None:
        """The first layout that fits; None if none does."""
        first = self.rows[0]
        if not first.fits:
            return None
        return first

    @property
    def step(self) -> Step:
        """A step of a replica."""
        return self.planned.step(self.planned.recomputes[0])

    @property
    def command(self) -> str | None:
        """The command that runs the first layout; None if none fits."""
        if self.first_fit is None:
            return None
        case, layout = self.planned.case, self.first_fit.layout
        chosen = {"tp": layout.tp, "pp": layout.pp, "recompute": self.first_fit.recompute}
        settings = [f"{name}={setting}" for name, setting in chosen.items() if name in case.settable]
        settings += sorted(text for text in self.options.set_ if text.partition("=")[0] not in chosen)
        image = f"{case.name}:STACK"
        if self.stack is not None:
            image = f"{case.name}:{self.stack.selector}"
        options = replace(self.options, set_=tuple(settings))
        return shlex.join(["flagbench", "run", image, *options.command_line()])

    def require_fit(self) -> None:
        """Raise FlagbenchError (out of memory) if no layout fits."""
        if self.first_fit is not None:
            return
        ways = ["use devices with more memory"]
        if "pp" in self.planned.engine.layout:
            ways.append("more of them")
        if self.planned.training and self.planned.config["train"]["micro_batch_size"] > 1:
            ways.append("a smaller --set micro_batch_size")
        devices, least = self.options.nodes * self.options.gpus, _gib(self.rows[0].memory.in_use)
        raise FlagbenchError(
            f"no layout of {devices} devices fits into {self.memory:g} GiB; the smallest needs {least}",
            remedy=", or ".join(ways),
            code=ExitCode.OUT_OF_MEMORY,
        )

    def to_dict(self) -> dict[str, Any]:
        """For a script."""
        step = self.step
        stack = None
        if self.stack is not None:
            stack = self.stack.name
        return {
            "case": self.planned.case.name,
            "stack": stack,
            "preset": self.options.preset,
            "precision": self.planned.precision,
            "devices": self.options.nodes * self.options.gpus,
            "devices_per_node": self.options.gpus,
            "memory_gib": self.memory,
            "sequence_length": step.sequence_length,
            "micro_batch_size": step.micro_batch,
            "batch_size": step.micro_batch * step.micro_batches,
            "layouts": [row.to_dict() for row in self.rows],
            "command": self.command,
        }

    def page(self) -> list[Block]:
        """For a person."""
        rows = []
        for row in self.rows:
            rows.append([describe(row) for describe in LAYOUT_COLUMNS.values()])
        table = Table(
            tuple(LAYOUT_COLUMNS),
            rows,
            right=frozenset(LAYOUT_COLUMNS) - {"RECOMPUTE", "FITS"},
            styles={"no": "bold red", "tight": "bold yellow"},
            drop=("BATCH",),
        )
        return [Lines((self._heading(),)), table, Lines(tuple(self._notes()))]

    def _heading(self) -> str:
        """The case, its precision, the batch and sequence, and the memory of a device."""
        step = self.step
        size = f"{step.micro_batch} x {step.sequence_length} tokens at a time"
        if self.planned.training:
            size = f"{step.micro_batch * step.micro_batches} samples a step for each replica, {size}"
        case, precision = self.planned.case.name, self.planned.precision
        return f"{case} in {precision}: {size}, devices of {self.memory:g} GiB"

    def _notes(self) -> list[str]:
        notes = [
            "IN USE is the predicted memory of each rank of the fullest stage, GiB (docs/plan.md).",
            PREDICTION_ERROR,
            f"A layout that fits by less than {TIGHT:.0%} is tight.",
        ]
        if self.command is not None:
            notes.append(f"To run the first one: {self.command}")
        return notes


def make_plan(
    name: str, catalog: Catalog, devices: int, per_node: int | None, memory: float | None, options: RunOptions
) -> MemoryPlan:
    """The plan of `case` or `case:stack` on that many devices.

    Args:
        per_node: devices of a node; 8, or all, where None.
        memory: GiB of a device; that of the stack's devices where None.
        options: its preset, precision and settings.

    Raises FlagbenchError (usage) for what cannot be planned.
    """
    case, stack = _case_and_stack(name, catalog)
    per_node = per_node or min(NODE, devices)
    if devices % per_node:
        raise FlagbenchError(
            f"{devices} devices cannot be divided into nodes of {per_node}",
            remedy="change --gpus or --gpus-per-node",
        )
    options = replace(options, nodes=devices // per_node, gpus=per_node)
    check_options(options)
    if stack is None:
        plan, traits = planned(case, _stack_with_accelerators(case, catalog), options), GPU
    else:
        plan, traits = planned(case, stack, options), memory_traits_of(stack)
    memory = _memory(memory, stack)
    return MemoryPlan(plan, stack, options, memory, rows(plan, devices, per_node, memory, traits))


def _stack_with_accelerators(case: Case, catalog: Catalog) -> Stack:
    """A stack for which options are checked where none was named: one for accelerators if the case has one."""
    stacks = [stack for stack in catalog.stacks.values() if case.name in stack.runs]
    return min(stacks, key=lambda stack: stack.device_kind == "cpu")


def _case_and_stack(name: str, catalog: Catalog) -> tuple[Case, Stack | None]:
    case: Case
    stack: Stack | None
    if case_and_stack(name)[1]:
        case, stack = resolve_image(name, catalog)
    else:
        case, stack = catalog_get(catalog.cases, name, kind="case"), None
    if not splits(case):
        able = ", ".join(case.name for case in catalog.cases.values() if splits(case))
        raise FlagbenchError(
            f"{case.name} cannot be split: every device has the whole model", remedy=f"cases that can be: {able}"
        )
    return case, stack


def _memory(gib: float | None, stack: Stack | None) -> float:
    """GiB of a device: as named, else that of all the stack's chosen devices. Raises FlagbenchError (usage)."""
    if gib is not None:
        if not 0 < gib <= 2**20:
            raise FlagbenchError(f"--mem {gib:g} is out of range", remedy="give the memory of a device in GiB")
        return gib
    if stack is None:
        raise FlagbenchError(
            "the memory of a device is not known", remedy="add --mem GIB, or name a stack: CASE:STACK"
        )
    if not stack.accelerators:
        raise FlagbenchError(f"the devices of {stack.selector} are not known", remedy="add --mem GIB")
    sizes = {device.memory_gib for device in stack.accelerators}
    if len(sizes) > 1:
        devices = ", ".join(f"{device.id} {device.memory_gib} GiB" for device in stack.accelerators)
        raise FlagbenchError(
            f"the devices of {stack.selector} do not have one size of memory",
            remedy=f"add --mem GIB, or name devices of one size: {devices}",
        )
    return float(sizes.pop())
