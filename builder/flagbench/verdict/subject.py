"""A record of a case, and what its parts are compared by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from flagbench.manifests.model import Accelerator, Case, Stack
from flagbench.manifests.settings import completed, preset_of
from flagbench.records.evidence import Packed
from flagbench.records.model import Record
from flagbench.terminal import brief
from flagbench.verdict.arguments import Arguments, parse
from flagbench.verdict.derivation import UNKNOWN, count, evaluate, look_up
from flagbench_core import __version__
from flagbench_core.flops import batch_of


class Subject:
    """A record of a case, and what its parts are compared by."""

    def __init__(self, record: Record, case: Case) -> None:
        self.record = record
        self.case = case
        self.config: Mapping[str, Any] = record.config or {}

    @cached_property
    def stack(self) -> Stack | None:
        """The stack of the record; None if this flagbench does not know it."""
        return self.case.stacks.get(self.record.stack)

    @cached_property
    def complete(self) -> Mapping[str, Any]:
        """The configuration, with what it lacks as its preset has it: no size may be hidden."""
        known = self.config and self.record.preset in self.case.presets
        preset = preset_of(self.case, self.record.preset, self.record.division) if known else {}
        return completed(self.config, preset)

    @property
    def stacks(self) -> Iterable[Stack]:
        """The stack of the record, or all stacks if it is unknown."""
        return self.case.stacks.values() if self.stack is None else (self.stack,)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of node 0's devices as its driver reports them, each once."""
        return tuple(sorted({device.name for device in self.record.system.devices}))

    @cached_property
    def accelerator(self) -> Accelerator | None:
        """The model of the record's devices; None if they are several or not in the stack's manifest."""
        if len(self.names) != 1:
            return None
        return next(filter(None, (stack.accelerator(self.names[0]) for stack in self.stacks)), None)

    @cached_property
    def device(self) -> Accelerator | None:
        """The same by all stacks of the case: what a device is capable of does not depend on the record's stack."""
        known = (stack.accelerator(name) for name in self.names[:2] for stack in self.case.stacks.values())
        return self.accelerator or (next(filter(None, known), None) if len(self.names) == 1 else None)

    @property
    def packed(self) -> bool:
        """Whether the times of the record's evidence are packed, as those of thousands of ranks are."""
        evidence = self.record.evidence
        return evidence is not None and any(isinstance(s.columns.get("device"), Packed) for s in evidence.spans)

    @cached_property
    def world(self) -> int:
        """Ranks of the job, by the system."""
        return self.record.system.nodes * self.record.system.devices_per_node

    @cached_property
    def replicas(self) -> int | None:
        """Data-parallel replicas by the configuration; None if it does not say."""
        parts = (count(self.config, "layout.tp") or 1) * (count(self.config, "layout.pp") or 1)
        return self.world // parts if self.config and not self.world % parts else None

    def counted(self, name: str) -> int | None:
        """`samples_per_step` or `tokens_per_sample` by the configuration; None if it does not say."""
        rule = self.case.counts.get(name)
        found = UNKNOWN if rule is None else evaluate(rule, self.complete)
        return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None

    @cached_property
    def flops_of_unit(self) -> float | None:
        """FLOPs of a token or a sample, of one sequence, by the case's formula.

        None if there is none, if another version counted the record by another or by none, or if a size is not known.
        """
        length, count = self.counted("tokens_per_sample"), self.case.flops
        if length is None or count is None or self.other_formula or (self.made_elsewhere and not self.record.flops):
            return None
        try:
            found = count(_numbers(look_up(self.complete, "model")), batch_of(1, length)).executed
            return float(found / length if self.case.unit == "tokens" else found)
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
            return None

    @property
    def other_formula(self) -> str | None:
        """The formula by which another version counted the record's FLOPs, if it is not the case's."""
        flops = self.record.flops
        counted = None if flops is None or flops.formula == self.case.formula else flops.formula
        return counted if self.made_elsewhere else None

    @property
    def made_elsewhere(self) -> bool:
        """Whether another version made the record: its manifest may have named other checks, or another formula."""
        return self.record.flagbench.version != __version__

    @cached_property
    def arguments(self) -> Arguments:
        """The record's command line."""
        return parse(self.record.argv)


def _numbers(model: Any) -> dict[str, Any]:
    """The sizes that are numbers; a record may have a list, which a product would repeat."""
    found: dict[str, Any] = {}
    for name, value in model.items():
        if isinstance(value, Mapping):
            found[name] = _numbers(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[name] = value
    return found


def text(value: Any) -> str:
    """A value as it stands in a clause, at most a line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return brief(str(value))


def differ(what: str, here: Any, source: str, there: Any) -> str:
    """A clause with both sides of a contradiction."""
    return f"{what} is {text(here)}, but {source} {text(there)}"
