"""A record as causes are found from it: its times per step, seconds, and what was seen beside them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from flagbench.manifests.model import Case
from flagbench.records.model import Rank, Record
from flagbench.records.telemetry import CpuTelemetry, DeviceTelemetry
from flagbench.verdict.subject import Subject
from flagbench_core.evidence import EvidenceError, Section
from flagbench_core.evidence.columns import MICRO
from flagbench_core.evidence.derive import INFER, TRAIN, of_rank
from flagbench_core.evidence.metrics import DEVICE, OWN, Window, window_of
from flagbench_core.evidence.section import WINDOW, read_section
from flagbench_core.evidence.stats import median

CORE, LOOP, WHOLE = "core", "loop", "whole"
"""What a rate counts: steps on the device, the whole loop around them, or evaluations too."""


class Run:
    """A record with evidence of at least one step in its window."""

    def __init__(self, record: Record, case: Case, section: Section, window: Window) -> None:
        self.record = record
        self.subject = Subject(record, case)
        self.section = section
        self.window = window
        self.steps = window.stretch.steps

    @cached_property
    def core(self) -> float:
        """Device time of a step, of the slowest rank."""
        return self.window.seconds / self.steps

    @cached_property
    def loop(self) -> float:
        """Time from one step to the next, of the slowest rank."""
        return max(map(self.own, self.numbers))

    @property
    def evaluated(self) -> float:
        """The share of rank 0's training that was evaluation."""
        timing = self.section.timing
        return timing.get("eval", 0) / timing["train"] if timing.get("train") else 0.0

    def time(self, counts: str) -> float:
        """Seconds per step of what a rate counts."""
        if counts == CORE:
            return self.core
        return self.loop / (1 - self.evaluated) if counts == WHOLE and self.evaluated < 1 else self.loop

    @property
    def numbers(self) -> range:
        """The ranks."""
        return range(self.section.world)

    def column(self, name: str, rank: int) -> float:
        """A rank's seconds per step in one column of the evidence."""
        return self.window.stretch.rank_time((name,), rank) / MICRO / self.steps

    def own(self, rank: int) -> float:
        """A rank's seconds from one step to the next."""
        return self.window.stretch.rank_time(OWN, rank) / MICRO / self.steps

    @cached_property
    def ranks(self) -> Sequence[Rank]:
        """The ranks of the record, in order."""
        return sorted(self.record.ranks, key=lambda rank: rank.rank)

    @cached_property
    def waits(self) -> list[float | None]:
        """The median time of a step that each rank waited in collectives; None where it was not measured.

        From the evidence, or from the record of an earlier version, whose evidence does not have them.
        """
        stretch, name = self.section.stretch(), "collective_wait_median"
        return [of_rank(stretch, rank.rank).get(name, rank.collective_wait_median) for rank in self.ranks]

    @cached_property
    def replicated(self) -> bool:
        """Whether every rank has a replica of its own, so that it waits for others only at the end of a step."""
        layout = self.record.layout
        return layout is not None and layout.tp == layout.pp == 1 and layout.dp > 1

    @cached_property
    def waited(self) -> list[float]:
        """The share of its time that each rank waited for a processor; empty if that was not measured."""
        durations = self.section.durations.get(TRAIN) or self.section.durations.get(INFER) or []
        waits = [rank.processor_wait_seconds for rank in self.ranks]
        if len(durations) != len(waits):
            return []
        known = [(wait, micro) for wait, micro in zip(waits, durations, strict=True) if wait is not None and micro]
        return [min(1.0, wait * MICRO / micro) for wait, micro in known] if len(known) == len(waits) else []

    @property
    def cpu(self) -> CpuTelemetry:
        """What was seen of node 0's processors."""
        return CpuTelemetry() if self.record.telemetry is None else self.record.telemetry.cpu

    @property
    def devices(self) -> Sequence[DeviceTelemetry]:
        """What was seen of node 0's devices."""
        return () if self.record.telemetry is None else self.record.telemetry.devices

    @cached_property
    def slowed(self) -> list[float]:
        """How far each device of node 0 stayed below its highest clock, as a share; empty if not known of all."""
        accelerator = self.subject.accelerator
        limit = accelerator.limits.sm_clock_mhz if accelerator else None
        found = []
        for device in self.devices:
            highest = device.sm_clock_max_mhz or (limit.value if limit else None)
            clock = clock_of(device)
            if not clock or not highest:
                return []
            found.append(max(0.0, 1 - clock / highest))
        return found

    @property
    def ceiling(self) -> float | None:
        """FLOP/s of the matrix product that was measured in the run, of the slowest rank."""
        return min(self.section.ceilings, default=None)

    @property
    def flops(self) -> float:
        """Model FLOPs of a step and device, recomputed ones included."""
        stretch = self.window.stretch
        return (stretch.flops("executed") + stretch.flops("recomputed")) / self.steps / self.section.world

    def peak(self, precision: str) -> float | None:
        """The datasheet's peak of the device, FLOP/s; None if the stack has none."""
        accelerator = self.subject.accelerator
        found = accelerator.peaks.get(precision) if accelerator else None
        return None if found is None else found.flops

    @property
    def where(self) -> str:
        """Which node telemetry is of, where there are several."""
        return " of node 0" if self.record.system.nodes > 1 else ""


def clock_of(device: DeviceTelemetry) -> float | None:
    """The mean clock of a device while it was not idle, MHz; of all samples in a record that does not say."""
    return device.sm_clock_busy_mhz or device.sm_clock_mean_mhz


def open_run(record: Record, case: Case) -> Run | None:
    """A record as a run; None if it has no evidence of a window.

    Raises EvidenceError if the evidence contradicts itself, or is of other ranks than the record lists.
    """
    if record.evidence is None:
        return None
    section = read_section(record.raw["evidence"])
    numbers = sorted(rank.rank for rank in record.ranks)
    if section.world != len(numbers) or numbers != [*range(len(numbers))]:
        raise EvidenceError(f"it is of {section.world} ranks, and the record lists others")
    kind = INFER if record.config is not None and INFER in record.config else TRAIN
    window = window_of(section.stretch(kind, WINDOW))
    if window is None:
        return None
    if not all(window.stretch.rank_time(parts, rank) for parts in (DEVICE, OWN) for rank in range(section.world)):
        raise EvidenceError("a rank's steps took no time")
    return Run(record, case, section, window)


def others(values: Sequence[float], index: int) -> float:
    """The median of all values but one."""
    return median([value for number, value in enumerate(values) if number != index])
