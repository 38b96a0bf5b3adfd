"""A plan as a table for people and as JSON for scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flagbench.manifests.model import Stack
from flagbench.page import Block, Lines, Table
from flagbench.plan.config import Planned
from flagbench.plan.layouts import GIB, UNCERTAINTY, Row
from flagbench.plan.model import Step
from flagbench.plan.speed import TensorSpeed
from flagbench.runs.request import RunOptions


def _gib(count: int) -> str:
    return f"{count / GIB:.1f}"


COLUMNS: dict[str, Callable[[Row], str]] = {
    "TP": lambda row: str(row.layout.tp),
    "PP": lambda row: str(row.layout.pp),
    "DP": lambda row: str(row.layout.dp),
    "RECOMPUTE": lambda row: row.recompute,
    "BATCH": lambda row: str(row.global_batch),
    "MODEL": lambda row: _gib(row.memory.weights + row.memory.gradients + row.memory.optimizer),
    "ACTIVATIONS": lambda row: _gib(row.memory.activations + row.memory.working),
    "IN USE": lambda row: _gib(row.memory.in_use),
    "FITS": lambda row: "tight" if row.tight else "yes" if row.fits else "no",
    "BUBBLE": lambda row: f"{row.bubble:.1%}",
    "SPEED": lambda row: f"{row.relative:.3f}",
}
"""Of the table: what each shows of a layout. Memory in GiB."""


@dataclass(frozen=True)
class Shown:
    """What is printed."""

    plan: Planned
    stack: Stack | None
    asked: RunOptions
    memory: float
    """GiB of a device."""
    speed: TensorSpeed
    rows: Sequence[Row]
    run: str | None
    """The command that runs the first row; None if it does not fit."""

    @property
    def step(self) -> Step:
        """A step of a replica."""
        return self.plan.step(self.plan.recomputes[0])

    def to_dict(self) -> dict[str, Any]:
        """For a script."""
        step = self.step
        return {
            "case": self.plan.case.name,
            "stack": self.stack.name if self.stack else None,
            "preset": self.asked.preset,
            "precision": self.plan.precision,
            "devices": self.asked.nodes * self.asked.gpus,
            "devices_per_node": self.asked.gpus,
            "memory_gib": self.memory,
            "sequence_length": step.sequence_length,
            "micro_batch_size": step.micro_batch,
            "batch_size": step.micro_batch * step.micro_batches,
            "tensor_speed": {"measured": dict(self.speed.measured), "claims": list(self.speed.claims)},
            "layouts": [row.to_dict() for row in self.rows],
            "fastest": self.rows[0].to_dict() if self.run else None,
            "command": self.run,
        }

    def page(self) -> list[Block]:
        """For a person."""
        step = self.step
        batch = f"{step.micro_batch * step.micro_batches} samples a step for each replica, " * self.plan.training
        size = f"{step.micro_batch} x {step.sequence_length} tokens at a time"
        head = (f"{self.plan.case.name} in {self.plan.precision}: {batch}{size}, devices of {self.memory:g} GiB",)
        table = Table(
            tuple(COLUMNS),
            [[cell(row) for cell in COLUMNS.values()] for row in self.rows],
            right=frozenset(COLUMNS) - {"RECOMPUTE", "FITS"},
            styles={"no": "bold red", "tight": "bold yellow"},
            drop=("MODEL", "ACTIVATIONS", "BATCH"),
        )
        return [Lines(head), table, Lines(tuple(self._notes()))]

    def _notes(self) -> list[str]:
        notes = [
            "Memory is predicted, GiB on each rank of the fullest stage. IN USE adds temporaries of the optimizer,",
            "what torch's allocator keeps, the context of a process and communication buffers. A layout that fits by",
            f"less than {UNCERTAINTY:.0%}, the uncertainty of the prediction, is tight and listed after the others.",
            "Data parallelism is assumed to cost no time.",
        ]
        if self.plan.training:
            notes.append("SPEED is that of a device, 1 without bubble, recomputation and cost of tensor parallelism.")
        if self.speed.claims:
            known = ", ".join(f"tp {tp}: {value:.3f}" for tp, value in self.speed.measured.items())
            notes += [
                f"Tensor parallelism ({known}) as in the published rows",
                f"  {' and '.join(self.speed.claims)}",
            ]
        else:
            notes.append("What tensor parallelism costs was not published; of equal speeds, less of it is first.")
        return notes if self.run is None else [*notes, f"Fastest that fits: {self.run}"]
