"""The plan that `flagbench plan` prints: the layouts of a case on a number of devices, and the command of the best.

`make_plan` is called by `cli/plan.py`. `MemoryPlan` prints itself as a table for people or as JSON for scripts.
"""

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
from flagbench.manifests.settings import can_be_split
from flagbench.manifests.stack import Stack
from flagbench.plan.layouts import (
    GIB,
    TIGHT,
    ConfiguredCase,
    LayoutRow,
    configure_case,
    rank_layouts,
)
from flagbench.plan.model import GPU, Step, memory_traits_of
from flagbench.runs.request import RunOptions, check_options
from flagbench_core.exit_codes import ExitCode

DEVICES_PER_NODE = 8
"""Devices of a node by default, as in all published rows of several nodes."""
PREDICTION_ERROR = "The prediction is off by more than 10 % for 8 of 17 published rows, by 21 % at most."
"""A summary of the table in docs/plan.md, which the help of `flagbench plan` repeats; tests compare all of them."""
LARGEST_MEMORY_GIB = 2**20
"""The largest --mem that is accepted, a pebibyte: more than any device has."""


def _gib_text(size: int) -> str:
    """A size in bytes as text in GiB."""
    return f"{size / GIB:.1f}"


def _fits_text(row: LayoutRow) -> str:
    """The cell of the column FITS: `yes`, `tight` or `no`."""
    if row.is_tight:
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
    "IN USE": lambda row: _gib_text(row.memory.in_use),
    "FITS": _fits_text,
}
"""The columns of the table, each with its text for a layout; memory in GiB."""


@dataclass(frozen=True)
class MemoryPlan:
    """The layouts of a case on a number of devices, those that fit first."""

    configured: ConfiguredCase
    stack: Stack | None
    """The stack that was named; None if only the case was."""
    options: RunOptions
    memory_gib: float
    """Memory of a device, GiB."""
    rows: Sequence[LayoutRow]

    @property
    def first_fit(self) -> LayoutRow | None:
        """The first layout that fits; None if none does."""
        best_row = self.rows[0]
        if not best_row.fits:
            return None
        return best_row

    @property
    def step(self) -> Step:
        """A step of a replica, with the first recomputation: the sizes printed do not depend on it."""
        return self.configured.step(self.configured.recomputes[0])

    @property
    def command(self) -> str | None:
        """The command that runs the first layout; None if none fits."""
        if self.first_fit is None:
            return None
        case = self.configured.case
        layout = self.first_fit.layout
        chosen = {"tp": layout.tp, "pp": layout.pp, "recompute": self.first_fit.recompute}
        settings = []
        for name, value in chosen.items():
            if name in case.settable:
                settings.append(f"{name}={value}")
        for text in sorted(self.options.set_):
            if text.partition("=")[0] not in chosen:
                settings.append(text)
        image = f"{case.name}:STACK"
        if self.stack is not None:
            image = f"{case.name}:{self.stack.selector}"
        options = replace(self.options, set_=tuple(settings))
        return shlex.join(["flagbench", "run", image, *options.command_line()])

    def require_fit(self) -> None:
        """Raise FlagbenchError (OUT_OF_MEMORY) if no layout fits."""
        if self.first_fit is not None:
            return
        remedies = ["use devices with more memory"]
        if "pp" in self.configured.engine.layout:
            remedies.append("more of them")
        if self.configured.is_training and self.step.micro_batch > 1:
            remedies.append("a smaller --set micro_batch_size")
        least = _gib_text(self.rows[0].memory.in_use)
        raise FlagbenchError(
            f"no layout of {self.options.ranks} devices fits into {self.memory_gib:g} GiB; "
            f"the smallest needs {least}",
            remedy=", or ".join(remedies),
            code=ExitCode.OUT_OF_MEMORY,
        )

    def to_dict(self) -> dict[str, Any]:
        """The plan as `flagbench plan --json` prints it."""
        step = self.step
        stack = None
        if self.stack is not None:
            stack = self.stack.name
        return {
            "case": self.configured.case.name,
            "stack": stack,
            "preset": self.options.preset,
            "precision": self.configured.precision,
            "devices": self.options.ranks,
            "devices_per_node": self.options.gpus,
            "memory_gib": self.memory_gib,
            "sequence_length": step.sequence_length,
            "micro_batch_size": step.micro_batch,
            "batch_size": step.micro_batch * step.micro_batches,
            "layouts": [row.to_dict() for row in self.rows],
            "command": self.command,
        }

    def page(self) -> list[Block]:
        """The plan as a heading, a table of the layouts, and notes."""
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
        if self.configured.is_training:
            size = f"{step.micro_batch * step.micro_batches} samples a step for each replica, {size}"
        case, precision = self.configured.case.name, self.configured.precision
        return f"{case} in {precision}: {size}, devices of {self.memory_gib:g} GiB"

    def _notes(self) -> list[str]:
        """The sentences below the table."""
        notes = [
            "IN USE is the predicted memory of each rank of the fullest stage, GiB (docs/plan.md).",
            PREDICTION_ERROR,
            f"A layout that fits by less than {TIGHT:.0%} is tight.",
        ]
        if self.command is not None:
            notes.append(f"To run the first one: {self.command}")
        return notes


def make_plan(
    name: str,
    catalog: Catalog,
    *,
    devices: int,
    per_node: int | None,
    memory_gib: float | None,
    options: RunOptions,
) -> MemoryPlan:
    """Plan the layouts of a case's model.

    Args:
        name: the case, as `CASE` or `CASE:STACK`.
        devices: the number of devices of all nodes.
        per_node: devices of a node. None: 8, or all if there are fewer.
        memory_gib: memory of a device. None: that of the stack's devices.
        options: preset, precision and settings of the run.

    Raises FlagbenchError (USAGE) for a case that is not split, and for numbers that do not fit each other.
    """
    case, stack = _case_and_stack(name, catalog)
    per_node = per_node or min(DEVICES_PER_NODE, devices)
    if devices % per_node:
        raise FlagbenchError(
            f"{devices} devices cannot be divided into nodes of {per_node}",
            remedy="change --gpus or --gpus-per-node",
        )
    options = replace(options, nodes=devices // per_node, gpus=per_node)
    check_options(options)
    if stack is None:
        configured = configure_case(case, _stack_with_accelerators(case, catalog), options)
        traits = GPU
    else:
        configured = configure_case(case, stack, options)
        traits = memory_traits_of(stack)
    device_gib = _device_memory(memory_gib, stack)
    rows = rank_layouts(configured, devices, per_node, device_gib, traits)
    return MemoryPlan(configured, stack, options, device_gib, rows)


def _stack_with_accelerators(case: Case, catalog: Catalog) -> Stack:
    """A stack to check options against if none was named: one for accelerators if the case has one."""
    stacks = [stack for stack in catalog.stacks.values() if case.name in stack.runs]
    return min(stacks, key=lambda stack: stack.device_kind == "cpu")


def _case_and_stack(name: str, catalog: Catalog) -> tuple[Case, Stack | None]:
    """The case and the stack that `name` names; None if it names no stack.

    Raises FlagbenchError (USAGE) for an unknown name, and for a case whose memory cannot be predicted.
    """
    _, stack_name = case_and_stack(name)
    stack: Stack | None = None
    if stack_name:
        case, stack = resolve_image(name, catalog)
    else:
        case = catalog_get(catalog.cases, name, kind="case")
    if not can_be_split(case):
        names = ", ".join(candidate.name for candidate in catalog.cases.values() if can_be_split(candidate))
        raise FlagbenchError(
            f"the memory of {case.name} cannot be predicted", remedy=f"cases of which it can: {names}"
        )
    return case, stack


def _device_memory(gib: float | None, stack: Stack | None) -> float:
    """Memory of a device in GiB: `gib` if it is given, else that of the stack's devices.

    Raises FlagbenchError (USAGE) if it is out of range, not known, or not the same for all devices of the stack.
    """
    if gib is not None:
        if not 0 < gib <= LARGEST_MEMORY_GIB:
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
