"""A record with its case, and the quantities by which rules check it: sizes, peaks, FLOPs, devices.

`recompute` makes a Subject from a record; the rules, `judge` and acceptances read it. A record may have been edited
or damaged, so a property is None or empty if the record lacks what it is computed from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from flagbench.console.terminal import brief
from flagbench.manifests.device import DeviceModel
from flagbench.manifests.model import Case
from flagbench.manifests.settings import completed
from flagbench.manifests.stack import Stack
from flagbench.records.model import DeviceTelemetry, Record
from flagbench.verdict.derivation import count, evaluate, look_up
from flagbench_core import __version__
from flagbench_core.case_kinds import MEASURE
from flagbench_core.config import digest, preset_of
from flagbench_core.evidence import RecordEvidence
from flagbench_core.evidence.generation import generation_of
from flagbench_core.flops import batch_of, generation, padded


class StatedSequences(NamedTuple):
    """The numbers of sequences of a sample that a record's conditions state, padding included."""

    mean: float
    most: float


@dataclass(frozen=True, eq=False)
class Subject:
    """A record of a case, with what `recompute` found in its evidence (the step times behind its numbers)."""

    record: Record
    """The record, with its metrics as computed again from its evidence."""
    case: Case
    evidence: RecordEvidence | None = None
    """The evidence; None if the record has none, or none that can be read."""
    unreadable: tuple[str, ...] = ()
    """Why the evidence cannot be read, as clauses."""
    differences: tuple[str, ...] = ()
    """Numbers of the record that do not follow from its evidence, as clauses with both numbers."""
    unmatched: tuple[str, ...] = ()
    """Metrics, fields and checks that either the record or this version of flagbench does not have."""

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The resolved configuration, with the `absent` keys of its case; empty if the record has none."""
        if self.record.config is None:
            return {}
        return completed(self.record.config, self.case.absent)

    @property
    def ending(self) -> str:
        """How a failed or interrupted run ended, as a clause."""
        return describe_ending(self.record)

    @property
    def config_digest(self) -> str | None:
        """The digest of the configuration; None if the record has no configuration."""
        if self.record.config is None:
            return None
        return digest(self.record.config)

    @property
    def not_compared(self) -> tuple[str, ...]:
        """Parts of the record to which no rule is applied, each with the reason."""
        return (*self.unmatched, *self._flops_not_compared(), *self._telemetry_not_compared())

    def _telemetry_not_compared(self) -> Iterable[str]:
        """Yield that telemetry is not compared with the device's limits, if no source publishes them."""
        if self.device is None or not self.device_telemetry:
            return
        limits = self.device.limits
        if not (limits.power_watts and limits.sm_clock_mhz):
            yield f"limits of power and clock: none are published for {self.device_names[0]}"

    def _flops_not_compared(self) -> Iterable[str]:
        """Yield why the FLOPs of a run are not compared with a formula, if they are not."""
        if self.record.evidence is None or self.record.status.state != "ok" or self.case.kind == MEASURE:
            return
        if self.case.formula is None:
            yield f"FLOPs: {self.case.name} counts none"
        elif self.other_formula:
            yield f"FLOPs: counted by {value_text(self.other_formula)}"
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
    def completed_config(self) -> Mapping[str, Any]:
        """The configuration, with settings that it lacks taken from its preset, so that every size is known."""
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
    def device_names(self) -> tuple[str, ...]:
        """The names of node 0's devices as its driver reports them, sorted, each once."""
        return tuple(sorted({device.name for device in self.record.system.devices}))

    @property
    def on_accelerator(self) -> bool:
        """Whether its stack runs on accelerators; False if this flagbench does not know the stack."""
        return self.stack is not None and self.stack.device_kind != "cpu"

    @cached_property
    def accelerator(self) -> DeviceModel | None:
        """The model of the record's devices by its own stack; None if they are several or not in its manifest."""
        if len(self.device_names) != 1:
            return None
        return find_accelerator(self.stacks, self.device_names[0])

    @cached_property
    def device(self) -> DeviceModel | None:
        """The model of the record's devices by any stack of the case; None if they are several or not known.

        A device has the same limits under every stack, so a rule on limits uses this rather than `accelerator`.
        """
        if self.accelerator is not None or len(self.device_names) != 1:
            return self.accelerator
        return find_accelerator(self.case.stacks.values(), self.device_names[0])

    @property
    def device_telemetry(self) -> tuple[DeviceTelemetry, ...]:
        """The telemetry of node 0's devices; empty if the record has none."""
        if self.record.telemetry is None:
            return ()
        return self.record.telemetry.devices

    @cached_property
    def world(self) -> int:
        """The number of ranks of the job, according to its nodes and devices."""
        return self.record.system.nodes * self.record.system.devices_per_node

    @cached_property
    def replicas(self) -> int | None:
        """The number of data-parallel replicas, according to the configuration; None if it does not say."""
        ranks_of_replica = (count(self.config, "layout.tp") or 1) * (count(self.config, "layout.pp") or 1)
        if not self.config or self.world % ranks_of_replica:
            return None
        return self.world // ranks_of_replica

    def work_count(self, name: str) -> int | None:
        """Return `samples_per_step` or `tokens_per_sample` by the case's rule; None if the configuration lacks it."""
        rule = self.case.counts.get(name)
        if rule is None:
            return None
        number = evaluate(rule, self.completed_config)
        if not isinstance(number, int) or isinstance(number, bool) or number <= 0:
            return None
        return number

    @cached_property
    def flops_of_unit(self) -> float | None:
        """FLOPs of one token, or of one sample with one sequence, by the case's formula.

        None if the case has no formula, if another version of flagbench counted the record's FLOPs by another formula
        or not at all, or if a size of the model is not known.
        """
        length = self.work_count("tokens_per_sample")
        formula = self.case.count_flops
        if length is None or formula is None or self.other_formula:
            return None
        if self.made_by_another_version and not self.record.flops:
            return None
        # A record may have any sizes, so the formula may fail on them.
        try:
            sizes = _select_sizes(look_up(self.completed_config, "model"), self.case.presets["reference"]["model"])
            model = padded(sizes, count(self.config, "layout.tp") or 1)
            batch = batch_of(1, length)
            generated = generation_of(self.completed_config)
            if generated is not None:
                batch = generation(1, generated.prompt, length)
            flops = formula(model, batch).executed
            if self.case.unit == "tokens":
                return float(flops / length)
            return float(flops)
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
            return None

    @cached_property
    def achieved_flops(self) -> float | None:
        """FLOP/s of one device in the window of measured steps, recomputation included; None if it is not known.

        The FLOPs are those of the record, or those that the window's samples take by the case's formula if these are
        more.
        """
        flops = self.record.flops
        window = self.record.window
        if flops is None or window is None or not window.seconds:
            return None
        units = window.samples
        if self.case.unit == "tokens":
            units *= self.work_count("tokens_per_sample") or 0
        executed = max(flops.executed, (self.flops_of_unit or 0.0) * units)
        return (executed + (flops.recomputed or 0)) / window.seconds / self.world

    @property
    def precision(self) -> str:
        """The precision that its matrix products ran in, or the configured one if the record does not say."""
        return str(self.record.conditions.get("precision") or self.config.get("precision"))

    @cached_property
    def peak(self) -> float | None:
        """The device's peak in the precision of the run, FLOP/s; None if no manifest has it."""
        if self.device is None:
            return None
        peak = self.device.peaks.get(self.precision)
        if peak is None:
            return None
        return float(peak.flops)

    @property
    def highest_flops(self) -> float | None:
        """FLOP/s that no run of this device and precision exceeds; None if that is not known.

        The peak is of the boost clock, so it is no bound for a device that runs above it.
        """
        if self.device is None or self.device.runs_above_boost:
            return None
        return self.peak

    @property
    def sequences_of_sample(self) -> float | None:
        """The mean number of sequences of a sample in the run, padding included; None if the record does not say."""
        work = self.record.work
        length = self.work_count("tokens_per_sample")
        if work is None or not work.tokens_executed or not work.samples_executed or length is None:
            return None
        return work.tokens_executed / work.samples_executed / length

    @property
    def sequences_stated(self) -> StatedSequences | None:
        """The sequences of a sample that the record's conditions state, such as `10 at most, mean 8.9`; None if none.

        A batch is padded to its sample with the most sequences, so the run has no fewer than the stated mean.
        """
        conditions = " ".join(str(self.record.conditions.get(name)) for name in self.case.ranges)
        numbers = [float(digits) for digits in re.findall(r"[0-9]+(?:\.[0-9]+)?", conditions)]
        if not numbers:
            return None
        return StatedSequences(mean=min(numbers), most=max(numbers))

    @property
    def first_step(self) -> int:
        """The step that the run began with: 0, or the step of the checkpoint that it was resumed from."""
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
        """The evaluations of the run as in the record: each has its `epoch`, `counted` examples and `accuracy`."""
        if self.record.quality is None:
            return ()
        return self.record.quality.evaluations

    @property
    def other_formula(self) -> str | None:
        """The formula by which another version counted the record's FLOPs; None if it is that of the case."""
        flops = self.record.flops
        if not self.made_by_another_version or flops is None or flops.formula == self.case.formula:
            return None
        return flops.formula

    @property
    def made_by_another_version(self) -> bool:
        """Whether another version of flagbench made the record: its case may have had other checks or formulas."""
        return self.record.flagbench.version != __version__


def describe_slow_devices(record: Record) -> list[str]:
    """Return a clause for each device that a record of the case `roofs`, or of its short form, found slow."""
    return [
        f"rank {device.rank} reaches {device.share:.0%} of the other devices' rates" for device in record.slow_devices
    ]


def describe_ending(record: Record) -> str:
    """Return how a failed or interrupted run ended, as a clause."""
    verb = "failed"
    if record.status.state == "interrupted":
        verb = "was interrupted"
    clause = f"the run {verb} in phase {record.status.phase}"
    if record.status.reason:
        return f"{clause}: {record.status.reason}"
    return clause


def find_accelerator(stacks: Iterable[Stack], name: str) -> DeviceModel | None:
    """Return the model of a device by the name that its driver reports, from the first stack that knows the name."""
    for stack in stacks:
        model = stack.accelerator(name)
        if model is not None:
            return model
    return None


def _select_sizes(model: Any, reference: Any) -> dict[str, Any]:
    """Return the sizes of a model that have a usable type, nested as in the configuration.

    These are numbers, and words if the reference preset has a word there. A record may have a list or a word in place
    of a number: multiplied by a large size, Python would repeat it and use up the memory.
    """
    sizes: dict[str, Any] = {}
    for name, size in model.items():
        expected = reference.get(name)
        is_number = isinstance(size, int | float) and not isinstance(size, bool)
        is_word = isinstance(size, str) and isinstance(expected, str)
        if isinstance(size, Mapping) and isinstance(expected, Mapping):
            sizes[name] = _select_sizes(size, expected)
        elif is_number or is_word:
            sizes[name] = size
    return sizes


def value_text(value: Any) -> str:
    """Return a value of a record as text for a message: at most one line, and spelled as in JSON."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return brief(str(value))


def describe_difference(name: str, recorded: Any, source: str, expected: Any) -> str:
    """Return a message with both sides of a contradiction: `NAME is RECORDED, but SOURCE EXPECTED`."""
    return f"{name} is {value_text(recorded)}, but {source} {value_text(expected)}"
