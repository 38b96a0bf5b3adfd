"""The causes that make a run slow, each with a function that finds it in a run and says how much time it cost.

`explain` calls them in the order of CAUSES, and shares out the time of the run among them. They read the evidence
(the step times of each rank, in columns) and the telemetry of a record.

A cost is in seconds per step of the time that the explained rate counts (`ExplainedRun.time`). A rank that is late
makes all others wait, so the cost is that of the latest rank, and a delay that all ranks share is counted once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from flagbench.console.terminal import brief
from flagbench.machine.disturbance_limits import is_capped
from flagbench.manifests.model import Case
from flagbench.records.model import CpuTelemetry, DeviceTelemetry, Rank, Record
from flagbench.verdict.conditions import ConditionResult
from flagbench.verdict.derivation import count
from flagbench.verdict.disturbance import describe_others_on_devices, describe_others_on_processors, find_throttling
from flagbench.verdict.roofs import LOW_ROOF, REACHED, ExpectedRoof
from flagbench.verdict.stall import find_stall
from flagbench.verdict.subject import Subject
from flagbench_core.case_kinds import INFER, TRAIN, kind_of
from flagbench_core.evidence import EvidenceError, RecordEvidence
from flagbench_core.evidence.columns import MICRO
from flagbench_core.evidence.derive import describe_rank
from flagbench_core.evidence.document import WINDOW, read_evidence
from flagbench_core.evidence.metrics import DEVICE, OWN, Window, window_of
from flagbench_core.stats.summary import median


class Counts(str, Enum):
    """The time that a rate counts; each one contains the time of the one before it."""

    CORE = "core"
    """Steps on the device."""
    LOOP = "loop"
    """The training or inference loop: steps, waiting for data, and the time of the host between steps."""
    WHOLE = "whole"
    """The loop and its evaluations."""


IDLE = 0.05
"""A device that is idle for a smaller share of its time counts as busy: 3 % was measured on an H100."""
NOTABLE_WAIT = 0.05
"""A late rank's wait for a processor is mentioned if it is longer by this share of its time."""
NOTABLE_CLOCK = 0.02
"""A late rank's lower clock is mentioned if it is lower by this share."""
TERA = 1e12
"""FLOP/s of a TFLOP/s."""
_SLOW_KERNELS = {
    "attention": ("unfused",),
    "adamw": ("torch",),
    "layer_norm": ("torch",),
    "optimizer": ("torch.optim.adamw.AdamW",),
    "norm": ("torch, three passes",),
    "weight_gradients": ("separate",),
}
"""Kernels that are slower than a fused one that every accelerator's stack has, by what they compute. The names and
values are those of `quality.training` or of a condition of a record."""
_KERNELS_IN_CONDITIONS = ("norm", "weight_gradients")
"""The kernels of _SLOW_KERNELS that a record names among its conditions."""


class Throttling(NamedTuple):
    """The reason that throttled devices for longest, and its seconds; an empty reason if none did."""

    reason: str = ""
    seconds: float = 0.0


class ExplainedRun:
    """A record with evidence of at least one step in its window, as times per step in seconds."""

    def __init__(self, record: Record, case: Case, counts: Counts, evidence: RecordEvidence, window: Window) -> None:
        self.record = record
        self.counts = counts
        self.accelerator = Subject(record, case).accelerator
        self.evidence = evidence
        self.window = window
        self.steps = window.step_range.steps

    @cached_property
    def core(self) -> float:
        """The mean time of a step on the device of the slowest rank, seconds."""
        return self.window.seconds / self.steps

    @cached_property
    def loop(self) -> float:
        """The mean time from one step to the next on the slowest rank, seconds."""
        return max(self.step_time(rank) for rank in self.rank_numbers)

    @property
    def evaluation_share(self) -> float:
        """The share of rank 0's training that was evaluation."""
        timing = self.evidence.timing
        if not timing.get("train"):
            return 0.0
        return timing.get("eval", 0) / timing["train"]

    @cached_property
    def time(self) -> float:
        """Seconds per step of the time that the rate counts."""
        if self.counts is Counts.CORE:
            return self.core
        if self.counts is Counts.WHOLE and self.evaluation_share < 1:
            return self.loop / (1 - self.evaluation_share)
        return self.loop

    @property
    def rank_numbers(self) -> range:
        """The numbers of the ranks, from 0."""
        return range(self.evidence.world)

    def column(self, name: str, rank: int) -> float:
        """Return a rank's seconds per step in one column of the evidence."""
        return self.window.step_range.rank_time((name,), rank) / MICRO / self.steps

    def step_time(self, rank: int) -> float:
        """Return a rank's seconds from one step to the next."""
        return self.window.step_range.rank_time(OWN, rank) / MICRO / self.steps

    @cached_property
    def ranks(self) -> Sequence[Rank]:
        """The ranks of the record, in order."""
        return sorted(self.record.ranks, key=lambda rank: rank.rank)

    @cached_property
    def processor_waits(self) -> list[float]:
        """The share of its time that each rank waited for a processor; empty if that was not measured."""
        durations = self.evidence.durations.get(TRAIN) or self.evidence.durations.get(INFER) or []
        waits = [rank.processor_wait_seconds for rank in self.ranks]
        if len(durations) != len(waits):
            return []
        shares = []
        for wait, duration in zip(waits, durations, strict=True):
            if wait is None or not duration:
                return []
            shares.append(min(1.0, wait * MICRO / duration))
        return shares

    @property
    def threads(self) -> int:
        """The number of threads of all ranks of a node."""
        ranks = self.record.system.devices_per_node
        threads = count(self.record.raw, "software.threads")
        if threads is None:
            return ranks
        return ranks * threads

    @property
    def cpu(self) -> CpuTelemetry:
        """The telemetry of node 0's processors; all of its fields are None if the record has no telemetry."""
        if self.record.telemetry is None:
            return CpuTelemetry()
        return self.record.telemetry.cpu

    @property
    def devices(self) -> Sequence[DeviceTelemetry]:
        """The telemetry of node 0's devices; empty if the record has no telemetry."""
        if self.record.telemetry is None:
            return ()
        return self.record.telemetry.devices

    @cached_property
    def clock_deficits(self) -> list[float]:
        """How far each device of node 0 stayed below its highest clock, as a share; empty if not known for all."""
        limit = None
        if self.accelerator is not None:
            limit = self.accelerator.limits.sm_clock_mhz
        shares = []
        for device in self.devices:
            clock = _mean_clock(device)
            highest = device.sm_clock_max_mhz
            if not highest and limit is not None:
                highest = limit.value
            if not clock or not highest:
                return []
            shares.append(max(0.0, 1 - clock / highest))
        return shares

    @cached_property
    def throttling(self) -> Throttling:
        """The reason that throttled node 0's devices for longest."""
        longest = Throttling()
        for reason, seconds in find_throttling(self.devices, at_own_limit=True).items():
            if seconds > longest.seconds:
                longest = Throttling(reason, seconds)
        return longest

    @property
    def ceiling(self) -> float | None:
        """FLOP/s of the matrix product measured in the run, of the slowest rank; None if none was measured."""
        return min(self.evidence.ceilings, default=None)

    @property
    def precision(self) -> object:
        """The precision in which its matrix products were executed, as the record has it."""
        return self.record.conditions.get("precision")

    def peak(self, precision: object) -> float | None:
        """Return the datasheet's peak of the device in a precision, FLOP/s; None if the stack has none."""
        if self.accelerator is None or not isinstance(precision, str):
            return None
        peak = self.accelerator.peaks.get(precision)
        if peak is None:
            return None
        return peak.flops

    def matmul_time(self, ceiling: float) -> float:
        """Return the seconds per step that its matrix products take at `ceiling` FLOP/s, recomputed ones included."""
        step_range = self.window.step_range
        flops_of_job = step_range.flops("executed") + step_range.flops("recomputed")
        flops_of_step = flops_of_job / self.steps / self.evidence.world
        return min(self.core, flops_of_step / ceiling)

    @property
    def of_node(self) -> str:
        """` of node 0` if there are several nodes, because telemetry describes only that one; else empty."""
        if self.record.system.nodes > 1:
            return " of node 0"
        return ""


def open_run(record: Record, case: Case, counts: Counts) -> ExplainedRun | None:
    """Return a record as a run; None if it has no evidence of a window.

    Raises EvidenceError if the evidence contradicts itself, or has other ranks than the record lists.
    """
    if record.evidence is None:
        return None
    evidence = read_evidence(record.raw["evidence"])
    numbers = sorted(rank.rank for rank in record.ranks)
    if numbers != list(range(evidence.world)):
        raise EvidenceError(f"it is of {evidence.world} ranks, and the record lists others")
    kind = kind_of(record.config or {})
    window = window_of(evidence.step_range(kind, WINDOW))
    if window is None:
        return None
    for rank in range(evidence.world):
        if not window.step_range.rank_time(DEVICE, rank) or not window.step_range.rank_time(OWN, rank):
            raise EvidenceError("a rank's steps took no time")
    return ExplainedRun(record, case, counts, evidence, window)


class OtherSide(NamedTuple):
    """The runs of a baseline, and the expected conditions and matrix product, with which a run is compared."""

    runs: Sequence[ExplainedRun]
    """The runs of the baseline; empty if there is none that can be compared."""
    conditions: Sequence[ConditionResult]
    """The conditions on both sides."""
    ceilings_agree: bool
    """Whether the matrix products measured on each side agree, so that a low one is that of a slow device."""
    reachable: ExpectedRoof | None = None
    """The TFLOP/s that a matrix product should reach on the device; None if that is not known."""


class Cost(NamedTuple):
    """The time that a cause cost one run."""

    seconds: float | None
    """Seconds per step; None if the record shows the cause, but not how much time it cost."""
    clause: str
    """What the record shows, with numbers."""


def find_data_wait(run: ExplainedRun) -> Cost | None:
    """Find the wait for the next batch. A device that still computes meanwhile loses nothing."""
    rank = max(run.rank_numbers, key=lambda number: run.column("data_wait", number))
    wait = run.column("data_wait", rank)
    step = run.step_time(rank)
    counted = run.loop
    if run.counts is Counts.CORE:
        counted = run.core
    lost = min(wait, counted - run.column("device", rank))
    clause = f"rank {rank} waited {_milliseconds(wait)} of {_milliseconds(step)} per step for its next batch"
    return Cost(lost, clause)


def find_evaluation(run: ExplainedRun) -> Cost | None:
    """Find the time of evaluations within the training, which only WHOLE counts."""
    if run.counts is not Counts.WHOLE or not run.evaluation_share:
        return None
    evaluations = 0
    if run.record.quality is not None:
        evaluations = len(run.record.quality.evaluations)
    seconds = run.record.timing.eval or 0.0
    clause = f"{evaluations} evaluations took {seconds:.1f} s, {run.evaluation_share:.0%} of the training"
    return Cost(run.evaluation_share * run.time, clause)


def find_host_time(run: ExplainedRun) -> Cost | None:
    """Find the time of the host between steps while the device waits, without the wait for data."""
    if run.counts is Counts.CORE:
        return None
    rank = max(run.rank_numbers, key=run.step_time)
    step = run.step_time(rank)
    lost = step - run.column("device", rank) - run.column("data_wait", rank)
    clause = f"rank {rank} spent {_milliseconds(lost)} of {_milliseconds(step)} outside of its device's step"
    return Cost(lost, clause)


def find_stalled_steps(run: ExplainedRun) -> Cost | None:
    """Find single steps that took many times as long as the others, if no cause before this one has their time."""
    step_range = run.window.step_range
    columns: Sequence[str] = OWN
    if run.counts is Counts.CORE:
        columns = DEVICE
    slowest = step_range.slowest(columns)
    longest = find_stall(step_range, columns, slowest)
    if longest is None or longest.column == "data_wait":  # `find_data_wait` has this time
        return None
    is_host_of_slowest = longest.column != "device" and longest.rank in (None, slowest)
    if run.counts is not Counts.CORE and is_host_of_slowest:  # `find_host_time` has this time
        return None
    return Cost(longest.lost / run.steps, str(longest))


def find_straggler(run: ExplainedRun) -> Cost | None:
    """Find one rank that is later than the others, beyond waiting for its data: all others wait for it in every step.

    If each rank has a whole replica of the model, the ranks wait for each other only in the collective at the end of
    a step. The late rank is then the one that waits least. With other layouts, ranks wait for each other within the
    step, and the device of node 0 with the lowest clock is taken for the late one.
    """
    layout = run.record.layout
    waits = _collective_waits(run)
    if layout is None or layout.tp * layout.pp > 1 or len(waits) < 2:
        return _find_late_device(run)
    number = min(run.rank_numbers, key=waits.__getitem__)
    data_waits = [run.column("data_wait", rank) for rank in run.rank_numbers]
    late_by_data = max(0.0, _excess(data_waits, number))
    late = max(0.0, -_excess(waits, number) - late_by_data)
    return Cost(late, _straggler_clause(run, number, late))


def _straggler_clause(run: ExplainedRun, number: int, late: float) -> str:
    """Return a clause on a rank that is `late` seconds per step: where it ran, and what may have made it slow."""
    rank = run.ranks[number]
    place = f"node {rank.node}, host {rank.host}, device {rank.local_rank}"
    if rank.uuid:
        place += f", {rank.uuid}"
    clause = f"rank {number} ({place}) was {_milliseconds(late)} later per step than the others"
    if run.processor_waits:
        excess_wait = _excess(run.processor_waits, number)
        if excess_wait > NOTABLE_WAIT:
            clause += f"; it waited for a processor in {excess_wait:.0%} more of its time"
    device = rank.local_rank
    deficits = run.clock_deficits
    # Telemetry is of node 0's devices, and there are others to compare with if there are at least two.
    if rank.node == 0 and device is not None and len(deficits) > max(1, device):
        excess_deficit = _excess(deficits, device)
        if excess_deficit > NOTABLE_CLOCK:
            clause += f"; its device's clock was {excess_deficit:.0%} below the others'"
    return clause


def _collective_waits(run: ExplainedRun) -> list[float]:
    """Return the median time, seconds, that each rank waits in a collective; empty if it is not known for all."""
    step_range = run.evidence.step_range()
    waits = []
    for rank in run.ranks:
        derived = describe_rank(step_range, rank.rank)
        wait = derived.get("collective_wait_median", rank.collective_wait_median)
        if wait is None:
            return []
        waits.append(wait)
    return waits


def _find_late_device(run: ExplainedRun) -> Cost | None:
    """Find the device of node 0 with the lowest clock, and what the difference to the other devices cost."""
    deficits = run.clock_deficits
    if len(deficits) < 2:
        return None
    device = max(range(len(deficits)), key=deficits.__getitem__)
    deficit = _excess(deficits, device)
    return Cost(deficit * run.core, f"device {device}{run.of_node} had a clock {deficit:.0%} below the others'")


def _excess(values: Sequence[float], index: int) -> float:
    """Return how much a value is above the median of all other values."""
    others = [value for number, value in enumerate(values) if number != index]
    return values[index] - median(others)


def find_processor_limit(run: ExplainedRun) -> Cost | None:
    """Find the limit of processors that the run's control group (cgroup) has."""
    share = _wait_for_limit(run)
    if not share:
        return None
    clause = f"its control group may use {run.cpu.quota:g} processors{run.of_node}"
    return _wait_cost(run, share, f"{clause} and had used them up in {run.cpu.throttled:.0%} of its periods")


def find_other_tenants(run: ExplainedRun) -> Cost | None:
    """Find other processes or virtual machines on the processors."""
    others = describe_others_on_processors(run.cpu)
    if not others:
        return None
    return _wait_cost(run, _wait_for_others(run), f"{', '.join(others)}{run.of_node}")


def find_too_few_processors(run: ExplainedRun) -> Cost | None:
    """Find ranks and threads that wait for each other, because there are fewer processors."""
    if describe_others_on_processors(run.cpu):
        return None
    processors = _usable_processors(run) or run.record.system.cpu.logical or 1
    clause = f"the run had {run.threads} ranks and threads on {processors} processors{run.of_node}"
    return _wait_cost(run, _wait_for_others(run), clause)


def _wait_for_limit(run: ExplainedRun) -> float:
    """Return the share of its time that every rank waited because of the limit of processors."""
    if not run.processor_waits or run.cpu.quota is None or not run.cpu.throttled:
        return 0.0
    excess_threads = max(0.0, 1 - run.cpu.quota / run.threads)
    return min(*run.processor_waits, run.cpu.throttled * excess_threads)


def _wait_for_others(run: ExplainedRun) -> float:
    """Return the share of its time that every rank waited for a processor for another reason than the limit."""
    return min(run.processor_waits, default=0.0) - _wait_for_limit(run)


def _wait_cost(run: ExplainedRun, share: float, clause: str) -> Cost | None:
    """Return the cost of waiting for processors; the longer wait of a single rank belongs to `find_straggler`."""
    if not run.processor_waits:
        return None
    least = min(run.processor_waits)
    return Cost(share * run.time, f"{clause}; every rank waited {least:.0%} of its time for a processor")


def find_idle_device(run: ExplainedRun) -> Cost | None:
    """Find devices without work within their steps, because the host starts kernels more slowly than they run."""
    samples = None
    if run.record.telemetry is not None:
        samples = run.record.telemetry.samples
    utilisations = [device.util_mean for device in run.devices if device.util_mean is not None]
    if not utilisations or not samples:
        return None
    # A driver reports the utilisation since its last sample, so the first sample says nothing about the training.
    idle = 1 - max(utilisations) - 1 / samples
    lost = idle * run.loop - (run.loop - run.core)
    if lost < IDLE * run.loop:
        return None
    return Cost(lost, f"the busiest device{run.of_node} had no kernel to run in {idle:.0%} of the time")


def find_power_limit(run: ExplainedRun) -> Cost | None:
    """Find lower clocks because of a limit of power."""
    reason, seconds = run.throttling
    clauses = []
    if "power" in reason:
        clauses.append(f"{reason} for {seconds:.0f} s")
    limits = {(device.power_limit_w, device.power_limit_default_w) for device in run.devices}
    for limit, default in limits:
        if is_capped(limit, default):
            clauses.append(f"limit {limit:g} W, the device's own is {default:g} W")
    if "power" in reason:
        return _clock_cost(run, "; ".join(clauses))
    # Without clocks and reasons, a limit below the device's own is the only sign.
    if clauses and not reason and not run.clock_deficits:
        return _clock_cost(run, "; ".join(clauses))
    return None


def find_throttled_clocks(run: ExplainedRun) -> Cost | None:
    """Find lower clocks because of heat, or for another reported reason than power."""
    reason, seconds = run.throttling
    if not reason or "power" in reason:
        return None
    hottest = max((device.temperature_max_c or 0.0 for device in run.devices), default=0.0)
    return _clock_cost(run, f"{reason} for {seconds:.0f} s, up to {hottest:.0f} degrees Celsius")


def find_set_clocks(run: ExplainedRun) -> Cost | None:
    """Find lower clocks without a reported reason, which somebody set."""
    if run.throttling.reason or not run.clock_deficits:
        return None
    return _clock_cost(run, "no reason but a setting was reported")


def _clock_cost(run: ExplainedRun, reason: str) -> Cost:
    """Return the cost of the lower clocks that all devices have; an even lower one belongs to `find_straggler`."""
    if not run.clock_deficits:
        return Cost(None, f"{reason}, at clocks not known")
    share = min(run.clock_deficits)
    clock = max(_mean_clock(device) or 0.0 for device in run.devices)
    clause = f"every device{run.of_node} was clocked at least {share:.0%} below its highest, {clock:.0f} MHz at most"
    return Cost(share * run.core, f"{clause}: {reason}")


def _mean_clock(device: DeviceTelemetry) -> float | None:
    """Return the mean clock of a device while it was busy, MHz; of all samples if the record has no such mean."""
    return device.sm_clock_busy_mhz or device.sm_clock_mean_mhz


def find_slow_precision(run: ExplainedRun, other_side: OtherSide) -> Cost | None:
    """Find a slower precision than the expected one, and how much longer its matrix products take."""
    expected = None
    for condition in other_side.conditions:
        if condition.name == "precision":
            expected = condition.expected
            break
    peak = run.peak(run.precision)
    expected_peak = run.peak(expected)
    if peak is None or expected_peak is None or peak >= expected_peak:
        return None
    ceiling = run.ceiling or REACHED * peak
    expected_ceiling = max(ceiling, REACHED * expected_peak)
    lost = run.matmul_time(ceiling) * (1 - ceiling / expected_ceiling)
    return Cost(lost, f"matrix products ran in {run.precision}, and {expected} is expected")


def find_low_ceiling(run: ExplainedRun, other_side: OtherSide) -> Cost | None:
    """Find a matrix product that is slow by itself, beyond what lower clocks account for.

    It is compared with those of the baseline, or with what the device should reach.
    """
    ceiling = run.ceiling
    if not ceiling or not other_side.ceilings_agree:
        return None
    if find_slow_precision(run, other_side) is not None:  # the slower precision accounts for it
        return None
    ceilings = [baseline.ceiling for baseline in other_side.runs if baseline.ceiling]
    if ceilings:
        expected = sum(ceilings) / len(ceilings)
        source = "the baseline's"
    elif other_side.reachable is not None:
        expected = other_side.reachable.value * TERA
        source = f"{other_side.reachable.source} at this clock"
    else:
        return None
    expected *= 1 - min(run.clock_deficits, default=0.0)
    if ceiling >= LOW_ROOF * expected:
        return None
    clause = f"a matrix product reached {ceiling / TERA:.3g} TFLOP/s, {source} is {expected / TERA:.3g}"
    return Cost(run.matmul_time(ceiling) * (1 - ceiling / expected), clause)


def are_ceilings_steady(runs: Sequence[ExplainedRun]) -> bool:
    """Whether the matrix products of several ranks or runs were about as fast: one alone may have been disturbed."""
    ceilings: list[float] = []
    for run in runs:
        ceilings.extend(run.evidence.ceilings)
    return len(ceilings) > 1 and min(ceilings) >= LOW_ROOF * max(ceilings)


def find_fewer_processors(run: ExplainedRun, other_side: OtherSide) -> Cost | None:
    """Find a run that may use fewer processors than the baseline, or than the machine has."""
    usable = _usable_processors(run)
    available: int | None
    if other_side.runs:
        counts = [_usable_processors(baseline) for baseline in other_side.runs]
        available = min((number for number in counts if number), default=None)
        source = "the baseline"
    else:
        available = run.record.system.cpu.logical
        source = "the machine"
    if not usable or available is None or usable >= available:
        return None
    return Cost(None, f"the run could use {usable} processors{run.of_node}, {source} {available}")


def _usable_processors(run: ExplainedRun) -> int | None:
    """Return how many processors the run may use; None if the record does not say."""
    return run.record.system.cpu.usable


def find_slow_kernels(run: ExplainedRun, other_side: OtherSide) -> Cost | None:
    """Find kernels that differ from the baseline's; without a baseline, kernels of which faster ones exist."""
    clauses = []
    if other_side.runs:
        of_baseline = _kernels_by_name(other_side.runs[0])
        for name, kernel in _kernels_by_name(run).items():
            if name in of_baseline and kernel != of_baseline[name]:
                clauses.append(f"{name} ran as {kernel}, the baseline's as {of_baseline[name]}")
    elif run.accelerator is not None:
        for name, kernel in _kernels_by_name(run).items():
            if kernel in _SLOW_KERNELS[name]:
                clauses.append(f"{name} ran as {kernel}, not as a fused kernel")
    if not clauses:
        return None
    return Cost(None, "; ".join(clauses))


def _kernels_by_name(run: ExplainedRun) -> dict[str, str]:
    """Return the kernels that the record names, by what they compute."""
    named: dict[str, object] = {name: run.record.conditions.get(name) for name in _KERNELS_IN_CONDITIONS}
    if run.record.quality is not None:
        named.update(run.record.quality.training or {})
    kernels = {}
    for name in _SLOW_KERNELS:
        kernel = named.get(name)
        if isinstance(kernel, str):
            kernels[name] = brief(kernel)
    return kernels


def find_device_tenants(run: ExplainedRun) -> Cost | None:
    """Find other processes on a device, or memory that was in use there before the run."""
    others = describe_others_on_devices(run.devices)
    if not others:
        return None
    return Cost(None, f"{', '.join(others)}{run.of_node}")


def _milliseconds(seconds: float) -> str:
    """Return a time as text, in milliseconds."""
    return f"{1e3 * seconds:.3g} ms"


_Find = Callable[[ExplainedRun, OtherSide], Cost | None]
"""A function that looks for a cause in a run, and returns what it cost; None if the run does not show it."""


def _in_run(find: Callable[[ExplainedRun], Cost | None]) -> _Find:
    """Adapt a function that needs only the run itself, as most do, to the signature of `Kind.find`."""

    def find_in_run(run: ExplainedRun, other_side: OtherSide) -> Cost | None:
        return find(run)

    return find_in_run


class Kind(NamedTuple):
    """A kind of cause."""

    name: str
    """Its key in `--json`."""
    title: str
    """Its name for a person."""
    action: str
    """What to do about it, as a clause."""
    find: _Find
    """The function that looks for it in a run."""


CAUSES = (
    Kind(
        "data_wait",
        "waiting for data",
        "put the prepared data on a local disk, or give the loader more workers (a condition of most claims)",
        _in_run(find_data_wait),
    ),
    Kind(
        "evaluation",
        "evaluations",
        "compare the number of evaluations and their batch size with the row's; they are conditions",
        _in_run(find_evaluation),
    ),
    Kind(
        "between_steps",
        "host between steps",
        "look for a slow processor, or for something that slows the host: a profiler, debugging variables, logging",
        _in_run(find_host_time),
    ),
    Kind(
        "stall",
        "a stalled step",
        "run it again undisturbed; look for what the machine did at that time, such as a slow disk or network",
        _in_run(find_stalled_steps),
    ),
    Kind(
        "straggler",
        "a slow rank",
        "run the case on that device alone; look for heat, errors in the kernel's log and other processes there",
        _in_run(find_straggler),
    ),
    Kind(
        "cpu_quota",
        "limit of processors",
        "raise the limit: `docker run --cpus`, resources.limits.cpu of a Kubernetes container, CPUQuota of a unit",
        _in_run(find_processor_limit),
    ),
    Kind(
        "other_tenants",
        "other tenants",
        "stop what else runs on the machine, or reserve processors",
        _in_run(find_other_tenants),
    ),
    Kind(
        "processors",
        "too few processors",
        "use fewer ranks or threads per node, or a larger machine",
        _in_run(find_too_few_processors),
    ),
    Kind(
        "pinned",
        "fewer processors",
        "run without taskset or a cpuset, or with as many processors on both sides",
        find_fewer_processors,
    ),
    Kind(
        "device_idle",
        "device idle",
        "look for threads and processes that hold the host's processors, and compare with a faster host",
        _in_run(find_idle_device),
    ),
    Kind(
        "power_cap",
        "power limit",
        "at the device's own limit this is normal for large matrix products; restore a limit that was lowered",
        _in_run(find_power_limit),
    ),
    Kind(
        "throttling",
        "throttling",
        "check the cooling: fans, air flow, the temperature of the room",
        _in_run(find_throttled_clocks),
    ),
    Kind("clocks", "low clocks", "reset the device's application clocks and locked clocks", _in_run(find_set_clocks)),
    Kind(
        "precision",
        "a slower precision",
        "run with the precision of the row (`--precision`), and unset variables that override it (of TF32, say)",
        find_slow_precision,
    ),
    Kind(
        "low_ceiling",
        "a slow device",
        "run the case on each device alone, and compare their models, clocks, partitions and error correction",
        find_low_ceiling,
    ),
    Kind(
        "kernel_fallback",
        "slower kernels",
        "use the image that flagbench builds for this stack, or install the fused kernels (apex, flash-attn)",
        find_slow_kernels,
    ),
    Kind(
        "device_tenants",
        "other tenants on a device",
        "stop the other processes on the device, and run again",
        _in_run(find_device_tenants),
    ),
)
"""All kinds of causes, in the order in which they take their share of the time: those with a time that was measured
directly come first, and a later one gets at most what the earlier ones leave."""
