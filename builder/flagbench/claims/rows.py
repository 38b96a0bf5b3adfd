"""A published row as what it means, what a rule finds in it, and the error for a file that has no rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flagbench.claims.numbers import Cell, read_number
from flagbench.claims.work import UnitWork, unit_work
from flagbench.errors import FlagbenchError
from flagbench.manifests.device import DeviceModel
from flagbench.manifests.model import Case
from flagbench.manifests.settings import reference_condition
from flagbench.terminal import visible
from flagbench_core.exit_codes import ExitCode

_SHOWN = 20
"""Problems that an error lists; the rest are counted."""


class TableError(FlagbenchError):
    """A file that cannot be read as rows, with every problem of it."""

    def __init__(
        self, problems: Sequence[str], remedy: str = "docs/lint-a-table.md has the columns and units"
    ) -> None:
        more = [f"... and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        super().__init__("\n  ".join([*problems[:_SHOWN], *more]), remedy=remedy, code=ExitCode.DATA)


@dataclass(frozen=True)
class LintFinding:
    """A cell of a published table that cannot be right, or that is not there."""

    row: int
    """From 1, without the header."""
    line: int
    name: str
    """The row's id, else `row N`."""
    field: str
    """The metric or condition."""
    rule: str
    message: str
    """What is wrong, with the numbers, and what to do."""

    def __str__(self) -> str:
        return visible(f"{self.name}: {self.field}: {self.rule}: {self.message}")

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Row:
    """One row. A condition or metric that its file does not have is absent; an empty one is in `blank`."""

    number: int
    """From 1, without the header."""
    line: int
    name: str
    """What findings call it: its id, else `row N`."""
    case: Case
    device: str
    """As the row calls it; empty if it does not say."""
    cards: tuple[DeviceModel, ...]
    """The accelerators of the manifests that this may be."""
    nodes: int | None
    devices: int | None
    precision: str
    """The label: fp32, tf32, fp16, bf16, fp8 or amp; empty if the row has none."""
    executed: str
    """The precision of the matrix products, where the row says so beside the label; else empty."""
    conditions: Mapping[str, str]
    metrics: Mapping[str, Cell]
    memory_total: Cell | None = None
    """GiB, where the row says of how much memory `mem_peak` was used."""
    blank: frozenset[str] = frozenset()
    """Conditions whose cell is empty."""
    unstated: frozenset[str] = frozenset()
    """Conditions of which the row says that they were not published."""
    complete: bool = False
    """Whether the row lists every condition of its case, as a claim must."""
    run_devices: int | None = None
    """How many devices the run of a claim has."""

    def finding(self, field: str, rule: str, message: str) -> LintFinding:
        """A finding of this row."""
        return LintFinding(self.number, self.line, self.name, field, rule, message)

    def number_of(self, condition: str) -> float | None:
        """A condition as a number: the row's own, else that of the case's reference preset."""
        if condition in self.conditions:
            cell = read_number(self.conditions[condition])
            return None if cell is None else cell.value
        if condition in self.unstated | self.blank:
            return None
        value = reference_condition(self.case, condition)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def condition(self, name: str) -> str:
        """A condition as text, for comparing rows: the row's own, else the reference preset's, else empty."""
        if name in self.conditions:
            cell = read_number(self.conditions[name])
            return self.conditions[name].lower() if cell is None else f"{cell.value:g}"
        value = None if name in self.unstated else reference_condition(self.case, name)
        return "" if value is None else f"{value:g}" if isinstance(value, float | int) else str(value).lower()

    @property
    def gate(self) -> Cell | None:
        """The metric that decides whether the case's claim is reproduced."""
        return self.metrics.get(self.case.gate)

    def rate_of_device(self, name: str) -> Cell | None:
        """A speed of one device, in the case's unit per second."""
        cell, spec = self.metrics.get(name), self.case.metric(name)
        if cell is None or (spec is not None and spec.scope == "device"):
            return cell
        return None if not self.devices else cell.scaled(1 / self.devices)

    @property
    def work(self) -> UnitWork | None:
        """FLOPs of a sample or token; None if the case's formula is not known."""
        length, choices = (self.number_of(name) for name in ("sequence_length", "choices"))
        return unit_work(self.case, int(length) if length else None, int(choices) if choices else None)

    @property
    def precisions(self) -> tuple[str, ...]:
        """The precisions the row may have been executed in: the one it states, else those its label allows."""
        if self.executed:
            return (self.executed,)
        return {"amp": ("bf16", "fp16")}.get(self.precision, (self.precision,) if self.precision else ())

    def peak(self, precisions: tuple[str, ...]) -> tuple[float, DeviceModel, str] | None:
        """The highest peak (FLOP/s) of the row's possible devices in these precisions; None if none is known."""
        found = [(card.flops[name], card, name) for card in self.cards for name in precisions if name in card.peaks]
        return max(found, key=lambda entry: entry[0], default=None)
