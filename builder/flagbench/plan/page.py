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
"""Devices of a node, unless told otherwise: as in all published rows of several nodes."""
PREDICTION_ERROR = "The prediction is off by more than 10 % for 8 of 17 published rows, by 21 % at most."
"""What the table in docs/plan.md shows."""


def _gib(count: int) -> str:
    return f"{count / GIB:.1f}"


LAYOUT_COLUMNS: dict[str, Callable[[LayoutRow], str]] = {
    "TP": lambda row: str(row.layout.tp),
    "PP": lambda row: str(row.layout.pp),
    "DP": lambda row: str(row.layout.dp),
    "RECOMPUTE": lambda row: row.recompute,
    "BATCH": lambda row: str(row.global_batch),
    "IN USE": lambda row: _gib(row.memory.in_use),
    "FITS": lambda row: "tight" if row.tight else "yes" if row.fits else "no",
}
"""Of the table: what each shows of a layout. Memory in GiB."""


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
        return self.rows[0] if self.rows[0].fits else None

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
        settings = [f"{name}={value}" for name, value in chosen.items() if name in case.settable]
        settings += sorted(text for text in self.options.set_ if text.partition("=")[0] not in chosen)
        image = f"{case.name}:{self.stack.selector if self.stack else 'STACK'}"
        return shlex.join(["flagbench", "run", image, *replace(self.options, set_=tuple(settings)).words()])

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
        return {
            "case": self.planned.case.name,
            "stack": self.stack.name if self.stack else None,
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
        step, case = self.step, self.planned.case
        batch = f"{step.micro_batch * step.micro_batches} samples a step for each replica, " * self.planned.training
        size = f"{step.micro_batch} x {step.sequence_length} tokens at a time"
        head = f"{case.name} in {self.planned.precision}: {batch}{size}, devices of {self.memory:g} GiB"
        table = Table(
            tuple(LAYOUT_COLUMNS),
            [[cell(row) for cell in LAYOUT_COLUMNS.values()] for row in self.rows],
            right=frozenset(LAYOUT_COLUMNS) - {"RECOMPUTE", "FITS"},
            styles={"no": "bold red", "tight": "bold yellow"},
            drop=("BATCH",),
        )
        return [Lines((head,)), table, Lines(tuple(self._notes()))]

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
    # Without a stack, options are checked for one with accelerators.
    able = [stack] if stack else [one for one in catalog.stacks.values() if case.name in one.runs]
    check_options(options)
    plan = planned(case, min(able, key=lambda one: one.device_kind == "cpu"), options)
    memory = _memory(memory, stack)
    traits = GPU if stack is None else memory_traits_of(stack)
    return MemoryPlan(plan, stack, options, memory, rows(plan, devices, per_node, memory, traits))


def _case_and_stack(name: str, catalog: Catalog) -> tuple[Case, Stack | None]:
    case: Case
    stack: Stack | None
    if case_and_stack(name)[1]:
        case, stack = resolve_image(name, catalog)
    else:
        case, stack = catalog_get(catalog.cases, name, kind="case"), None
    if not splits(case):
        able = ", ".join(other.name for other in catalog.cases.values() if splits(other))
        raise FlagbenchError(
            f"{case.name} cannot be split: every device has the whole model", remedy=f"cases that can be: {able}"
        )
    return case, stack


def _memory(given: float | None, stack: Stack | None) -> float:
    """GiB of a device: as given, else that of all the stack's chosen devices. Raises FlagbenchError (usage)."""
    if given is not None:
        if not 0 < given <= 2**20:
            raise FlagbenchError(f"--mem {given:g} is out of range", remedy="give the memory of a device in GiB")
        return given
    if stack is None:
        raise FlagbenchError(
            "the memory of a device is not known", remedy="add --mem GIB, or name a stack: CASE:STACK"
        )
    sizes = {device.id: device.memory_gib for device in stack.accelerators}
    if len(set(sizes.values())) != 1:
        named = ", ".join(f"{name} {size} GiB" for name, size in sizes.items())
        raise FlagbenchError(
            f"the devices of {stack.selector} {'do not have one size of memory' if sizes else 'are not known'}",
            remedy=f"add --mem GIB{', or name devices of one size: ' + named if named else ''}",
        )
    return float(next(iter(sizes.values())))
