"""A record of a case with the numbers that its evidence proves, and what its parts are compared with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flagbench.console.terminal import brief
from flagbench.manifests.device import DeviceModel
from flagbench.manifests.model import Case
from flagbench.manifests.settings import completed
from flagbench.manifests.stack import Stack
from flagbench.records.model import DeviceTelemetry, Record
from flagbench.verdict.derivation import count, evaluate, look_up
from flagbench_core import __version__
from flagbench_core.config import digest, preset_of
from flagbench_core.evidence import Section
from flagbench_core.evidence.section import MEASURE
from flagbench_core.flops import batch_of, padded


@dataclass(frozen=True, eq=False)
class Subject:
    """A record of a case, and what its parts are compared with; `recompute` makes it."""

    record: Record
    """Its metrics as computed again from its evidence."""
    case: Case
    section: Section | None = None
    """The evidence, if it can be read."""
    unreadable: tuple[str, ...] = ()
    """Why it cannot be."""
    differences: tuple[str, ...] = ()
    """Numbers of the record that do not follow from it."""
    unmatched: tuple[str, ...] = ()
    """Names that only one of the record and this version knows."""

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The resolved configuration, with the `absent` keys of its case; empty if the record has none."""
        if self.record.config is None:
            return {}
        return completed(self.record.config, self.case.absent)

    @property
    def ending(self) -> str:
        """How a failed or interrupted run ended."""
        return ending(self.record)

    @property
    def config_digest(self) -> str | None:
        """The digest that the configuration has; None if there is none."""
        return None if self.record.config is None else digest(self.record.config)

    @property
    def not_compared(self) -> tuple[str, ...]:
        """What no rule is applied to: names that only the record or this version knows, and FLOPs not counted."""
        return (*self.unmatched, *self._uncounted(), *self._unlimited())

    def _unlimited(self) -> Iterable[str]:
        """Limits of the device that no source gives, so that telemetry is not held against them."""
        limits = self.device.limits if self.device is not None else None
        if limits is not None and self.monitored and not (limits.power_watts and limits.sm_clock_mhz):
            yield f"limits of power and clock: none are published for {self.names[0]}"

    def _uncounted(self) -> Iterable[str]:
        if self.record.evidence is None or self.record.status.state != "ok" or self.case.kind == MEASURE:
            return
        if self.case.formula is None:
            yield f"FLOPs: {self.case.name} counts none"
        elif self.other_formula:
            yield f"FLOPs: counted by {text(self.other_formula)}"
        elif self.record.flops is not None and self.flops_of_unit is None:
            yield "FLOPs: the tokens of a sample or a size of the model are not known"

    @cached_property
    def stack(self) -> Stack | None:
        """The stack of the record; None if this flagbench does not know it."""
        for stack in self.case.stacks.values():
            if self.record.stack in stack.names:
                return stack
        return None

    @cached_property
    def complete(self) -> Mapping[str, Any]:
        """The configuration, with what it lacks as its preset has it: no size may be hidden."""
        if not self.config or self.record.preset not in self.case.presets:
            return completed(self.config, {})
        return completed(self.config, preset_of(self.case.presets, self.record.preset))

    @property
    def stacks(self) -> Iterable[Stack]:
        """The stack of the record, or all stacks if it is unknown."""
        if self.stack is None:
            return self.case.stacks.values()
        return (self.stack,)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of node 0's devices as its driver reports them, each once."""
        return tuple(sorted({device.name for device in self.record.system.devices}))

    @property
    def on_accelerator(self) -> bool:
        """Whether its stack runs on accelerators; False where this flagbench does not know the stack."""
        return self.stack is not None and self.stack.device_kind != "cpu"

    @cached_property
    def accelerator(self) -> DeviceModel | None:
        """The model of the record's devices; None if they are several or not in the stack's manifest."""
        if len(self.names) != 1:
            return None
        return accelerator_of(self.stacks, self.names[0])

    @cached_property
    def device(self) -> DeviceModel | None:
        """The same by all stacks of the case: what a device is capable of does not depend on the record's stack."""
        if self.accelerator is not None or len(self.names) != 1:
            return self.accelerator
        return accelerator_of(self.case.stacks.values(), self.names[0])

    @property
    def monitored(self) -> tuple[DeviceTelemetry, ...]:
        """The telemetry of the devices."""
        if self.record.telemetry is None:
            return ()
        return self.record.telemetry.devices

    @cached_property
    def world(self) -> int:
        """Ranks of the job, by the system."""
        return self.record.system.nodes * self.record.system.devices_per_node

    @cached_property
    def replicas(self) -> int | None:
        """Data-parallel replicas by the configuration; None if it does not say."""
        ranks_of_replica = (count(self.config, "layout.tp") or 1) * (count(self.config, "layout.pp") or 1)
        if not self.config or self.world % ranks_of_replica:
            return None
        return self.world // ranks_of_replica

    def counted(self, name: str) -> int | None:
        """`samples_per_step` or `tokens_per_sample` by the configuration; None if it does not say."""
        rule = self.case.counts.get(name)
        if rule is None:
            return None
        number = evaluate(rule, self.complete)
        if not isinstance(number, int) or isinstance(number, bool) or number <= 0:
            return None
        return number

    @cached_property
    def flops_of_unit(self) -> float | None:
        """FLOPs of a token or a sample, of one sequence, by the case's formula.

        None if there is none, if another version counted the record by another or by none, or if a size is not known.
        """
        length, formula = self.counted("tokens_per_sample"), self.case.count_flops
        if length is None or formula is None or self.other_formula:
            return None
        if self.made_elsewhere and not self.record.flops:
            return None
        try:
            sizes = _sizes(look_up(self.complete, "model"), self.case.presets["reference"]["model"])
            model = padded(sizes, count(self.config, "layout.tp") or 1)
            flops = formula(model, batch_of(1, length)).executed
            if self.case.unit == "tokens":
                return float(flops / length)
            return float(flops)
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
            return None

    @cached_property
    def achieved(self) -> float | None:
        """FLOP/s of a device in the window, recomputation included; None if the record does not say.

        By the record, but no fewer than the window's samples take by the formula of the case.
        """
        flops, window = self.record.flops, self.record.window
        if flops is None or window is None or not window.seconds:
            return None
        units = window.samples
        if self.case.unit == "tokens":
            units *= self.counted("tokens_per_sample") or 0
        executed = max(flops.executed, (self.flops_of_unit or 0.0) * units)
        return (executed + (flops.recomputed or 0)) / window.seconds / self.world

    @property
    def precision(self) -> str:
        """The precision that its matrix products ran in, or should have."""
        return str(self.record.conditions.get("precision") or self.config.get("precision"))

    @cached_property
    def peak(self) -> float | None:
        """The device's peak in the precision of the run, FLOP/s; None where no manifest has it."""
        peak = self.device.peaks.get(self.precision) if self.device is not None else None
        if peak is None:
            return None
        return float(peak.flops)

    @property
    def most(self) -> float | None:
        """What no run of this device and precision exceeds, FLOP/s; None where the peak is no such bound."""
        if self.device is None or self.device.runs_above_boost:
            return None
        return self.peak

    @property
    def sequences_of_sample(self) -> float | None:
        """Sequences of a sample, padding included, the mean of the run; None if the record does not say."""
        work, length = self.record.work, self.counted("tokens_per_sample")
        if work is None or not work.tokens_executed or not work.samples_executed or length is None:
            return None
        return work.tokens_executed / work.samples_executed / length

    @property
    def sequences_stated(self) -> tuple[float, float] | None:
        """The mean and the largest number of sequences of a sample by the record's conditions, such as
        `10 at most, mean 8.9`; None if they do not say. A batch is padded to its largest, so it has no fewer."""
        conditions = " ".join(str(self.record.conditions.get(name)) for name in self.case.ranges)
        numbers = [float(digits) for digits in re.findall(r"[0-9]+(?:\.[0-9]+)?", conditions)]
        if not numbers:
            return None
        return min(numbers), max(numbers)

    @property
    def first_step(self) -> int:
        """The step that the run began with: later than 0 if it was resumed."""
        if self.record.quality is None:
            return 0
        return count(self.record.quality.resumed, "step") or 0

    @property
    def finite_losses(self) -> list[float]:
        """The losses of the first steps, without those that are not finite."""
        if self.record.quality is None or self.record.quality.losses is None:
            return []
        return [float(loss) for loss in self.record.quality.losses.values if loss is not None]

    @property
    def evaluations(self) -> tuple[dict[str, Any], ...]:
        """The evaluations of the run."""
        if self.record.quality is None:
            return ()
        return self.record.quality.evaluations

    @property
    def other_formula(self) -> str | None:
        """The formula by which another version counted the record's FLOPs, if it is not the case's."""
        flops = self.record.flops
        if not self.made_elsewhere or flops is None or flops.formula == self.case.formula:
            return None
        return flops.formula

    @property
    def made_elsewhere(self) -> bool:
        """Whether another version made the record: its manifest may have named other checks, or another formula."""
        return self.record.flagbench.version != __version__


def slow_devices(record: Record) -> list[str]:
    """Each device that a case which measures found slow, in words."""
    return [
        f"rank {device.rank} reaches {device.share:.0%} of the other devices' rates" for device in record.slow_devices
    ]


def ending(record: Record) -> str:
    """How a failed or interrupted run ended."""
    verb = "was interrupted" if record.status.state == "interrupted" else "failed"
    sentence = f"the run {verb} in phase {record.status.phase}"
    if record.status.reason:
        return f"{sentence}: {record.status.reason}"
    return sentence


def accelerator_of(stacks: Iterable[Stack], name: str) -> DeviceModel | None:
    """The model of a device by the first of the stacks that knows its name, as its driver reports it."""
    for stack in stacks:
        model = stack.accelerator(name)
        if model is not None:
            return model
    return None


def _sizes(model: Any, reference: Any) -> dict[str, Any]:
    """The sizes that are numbers, or words where the reference preset has a word.

    A record may have a list or a word in place of a number, which a product would repeat.
    """
    sizes: dict[str, Any] = {}
    for name, size in model.items():
        expected = reference.get(name)
        is_number = isinstance(size, int | float) and not isinstance(size, bool)
        is_word = isinstance(size, str) and isinstance(expected, str)
        if isinstance(size, Mapping) and isinstance(expected, Mapping):
            sizes[name] = _sizes(size, expected)
        elif is_number or is_word:
            sizes[name] = size
    return sizes


def text(value: Any) -> str:
    """A value as it stands in a message, at most a line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return brief(str(value))


def differ(what: str, recorded: Any, source: str, expected: Any) -> str:
    """A message with both sides of a contradiction."""
    return f"{what} is {text(recorded)}, but {source} {text(expected)}"
