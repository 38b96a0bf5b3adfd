"""What made a run slow: causes that its evidence and its telemetry show, each with what it cost.

A cost is in seconds per step of the time that a rate counts (`Run.time`). A rank that is late makes all others wait,
so what counts is the latest rank, and what all of them share counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

from flagbench.console.terminal import brief
from flagbench.machine.disturbance_limits import is_capped
from flagbench.manifests.model import Case
from flagbench.records.model import CpuTelemetry, DeviceTelemetry, Rank, Record
from flagbench.verdict.conditions import ConditionResult
from flagbench.verdict.disturbance import others_on_devices, others_on_processors, throttled
from flagbench.verdict.roofs import LOW_ROOF, REACHED, ExpectedRoof
from flagbench.verdict.stall import find_stall
from flagbench.verdict.subject import Subject
from flagbench_core.evidence import EvidenceError, Section
from flagbench_core.evidence.columns import MICRO
from flagbench_core.evidence.derive import of_rank
from flagbench_core.evidence.metrics import DEVICE, OWN, Window, window_of
from flagbench_core.evidence.section import INFER, TRAIN, WINDOW, kind_of, read_section
from flagbench_core.stats.summary import median

CORE, LOOP, WHOLE = "core", "loop", "whole"
"""What a rate counts: steps on the device, the whole loop around them, or evaluations too."""
IDLE = 0.05
"""The share of its time; a device is idle for less between the steps of a case that keeps it busy: 3 % on an H100."""
_SLOW_KERNELS = {
    "attention": ("unfused",),
    "adamw": ("torch",),
    "layer_norm": ("torch",),
    "optimizer": ("torch.optim.adamw.AdamW",),
    "norm": ("torch, three passes",),
    "weight_gradients": ("separate",),
}
"""By the name that `quality.training` or a condition has for a kernel: those that an accelerator's stack has a fused
one for."""
_KERNELS_IN_CONDITIONS = ("norm", "weight_gradients")


class ExplainedRun:
    """A record with evidence of at least one step in its window: its times per step, seconds."""

    def __init__(self, record: Record, case: Case, counts: str, section: Section, window: Window) -> None:
        self.record = record
        self.counts = counts
        self.accelerator = Subject(record, case).accelerator
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
        return max(self.step_time(rank) for rank in self.numbers)

    @property
    def evaluated(self) -> float:
        """The share of rank 0's training that was evaluation."""
        timing = self.section.timing
        if not timing.get("train"):
            return 0.0
        return timing.get("eval", 0) / timing["train"]

    @cached_property
    def time(self) -> float:
        """Seconds per step of what the rate counts."""
        if self.counts == CORE:
            return self.core
        if self.counts == WHOLE and self.evaluated < 1:
            return self.loop / (1 - self.evaluated)
        return self.loop

    @property
    def numbers(self) -> range:
        """The ranks."""
        return range(self.section.world)

    def column(self, name: str, rank: int) -> float:
        """A rank's seconds per step in one column of the evidence."""
        return self.window.stretch.rank_time((name,), rank) / MICRO / self.steps

    def step_time(self, rank: int) -> float:
        """A rank's seconds from one step to the next."""
        return self.window.stretch.rank_time(OWN, rank) / MICRO / self.steps

    @cached_property
    def ranks(self) -> Sequence[Rank]:
        """The ranks of the record, in order."""
        return sorted(self.record.ranks, key=lambda rank: rank.rank)

    @cached_property
    def waited(self) -> list[float]:
        """The share of its time that each rank waited for a processor; empty if that was not measured."""
        durations = self.section.durations.get(TRAIN) or self.section.durations.get(INFER) or []
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
        """Ranks and their threads on a node."""
        ranks = self.record.system.devices_per_node
        software = self.record.raw.get("software", {})
        threads = software.get("threads") if isinstance(software, dict) else None
        if not isinstance(threads, int) or threads <= 0:
            return ranks
        return ranks * threads

    @property
    def cpu(self) -> CpuTelemetry:
        """The telemetry of node 0's processors."""
        if self.record.telemetry is None:
            return CpuTelemetry()
        return self.record.telemetry.cpu

    @property
    def devices(self) -> Sequence[DeviceTelemetry]:
        """The telemetry of node 0's devices."""
        if self.record.telemetry is None:
            return ()
        return self.record.telemetry.devices

    @cached_property
    def slowed(self) -> list[float]:
        """How far each device of node 0 stayed below its highest clock, as a share; empty if not known of all."""
        limit = self.accelerator.limits.sm_clock_mhz if self.accelerator is not None else None
        shares = []
        for device in self.devices:
            clock, highest = _mean_clock(device), device.sm_clock_max_mhz
            if not highest and limit is not None:
                highest = limit.value
            if not clock or not highest:
                return []
            shares.append(max(0.0, 1 - clock / highest))
        return shares

    @cached_property
    def throttled(self) -> tuple[str, float]:
        """The reason that throttled the devices for longest, and its seconds; empty if none did."""
        longest = throttled(self.devices, at_own_limit=True)
        return max(longest.items(), key=lambda item: item[1], default=("", 0.0))

    @property
    def ceiling(self) -> float | None:
        """FLOP/s of the matrix product that was measured in the run, of the slowest rank."""
        return min(self.section.ceilings, default=None)

    @property
    def precision(self) -> object:
        """What its matrix products were executed in."""
        return self.record.conditions.get("precision")

    def peak(self, precision: object) -> float | None:
        """The datasheet's peak of the device, FLOP/s; None if the stack has none."""
        if self.accelerator is None or not isinstance(precision, str):
            return None
        peak = self.accelerator.peaks.get(precision)
        return None if peak is None else peak.flops

    def products(self, ceiling: float) -> float:
        """Seconds per step that its matrix products take at a ceiling, FLOP/s; recomputed ones included."""
        stretch = self.window.stretch
        flops = (stretch.flops("executed") + stretch.flops("recomputed")) / self.steps / self.section.world
        return min(self.core, flops / ceiling)

    @property
    def where(self) -> str:
        """The node that telemetry describes, where there are several: ` of node 0`."""
        if self.record.system.nodes > 1:
            return " of node 0"
        return ""


def open_run(record: Record, case: Case, counts: str) -> ExplainedRun | None:
    """A record as a run; None if it has no evidence of a window.

    Raises EvidenceError if the evidence contradicts itself, or is of other ranks than the record lists.
    """
    if record.evidence is None:
        return None
    section = read_section(record.raw["evidence"])
    numbers = sorted(rank.rank for rank in record.ranks)
    if numbers != list(range(section.world)):
        raise EvidenceError(f"it is of {section.world} ranks, and the record lists others")
    kind = kind_of(record.config or {})
    window = window_of(section.stretch(kind, WINDOW))
    if window is None:
        return None
    for rank in range(section.world):
        if not window.stretch.rank_time(DEVICE, rank) or not window.stretch.rank_time(OWN, rank):
            raise EvidenceError("a rank's steps took no time")
    return ExplainedRun(record, case, counts, section, window)


class OtherSide(NamedTuple):
    """What a run is compared with: the runs of a baseline, and the conditions on both sides."""

    runs: Sequence[ExplainedRun]
    conditions: Sequence[ConditionResult]
    steady: bool
    """Whether the ceilings measured on each side agree, so that a low one is the device's."""
    reachable: ExpectedRoof | None = None
    """What a matrix product of the device reaches, TFLOP/s."""


class Cost(NamedTuple):
    """What a cause cost one run."""

    seconds: float | None
    """Per step; None if the record does not say how many."""
    clause: str
    """What the record shows."""


def data_wait(run: ExplainedRun, other_side: OtherSide) -> Cost | None:
    """Waiting for the next batch; a device that still computes meanwhile loses nothing."""
    rank = max(run.numbers, key=lambda number: run.column("data_wait", number))
    wait, step = run.column("data_wait", rank), run.step_time(rank)
    counted = run.core if run.counts == CORE else run.loop
    lost = min(wait, counted - run.column("device", rank))
    return Cost(
        lost, f"rank {rank} waited {_milliseconds(wait)} of {_milliseconds(step)} per step for its next batch"
    )


def evaluation(run: ExplainedRun, other_side: OtherSide) -> Cost | None:
    """Evaluations within the training; only the rate of the whole counts them."""
    if run.counts != WHOLE or not run.evaluated:
        return None
    evaluations = run.record.quality.evaluations if run.record.quality is not None else ()
    seconds = run.record.timing.eval or 0.0
    clause = f"{len(evaluations)} evaluations took {seconds:.1f} s, {run.evaluated:.0%} of the training"
    return Cost(run.evaluated * run.time, clause)


def between_steps(run: ExplainedRun, other_side: OtherSide) -> Cost | None:
    """What the host does between steps while the device waits, but for waiting for data."""
    if run.counts == CORE:
        return None
    rank = max(run.numbers, key=run.step_time)
    step = run.step_time(rank)
    lost = step - run.column("device", rank) - run.column("data_wait", rank)
    return Cost(
        lost, f"rank {rank} spent {_milliseconds(lost)} of {_milliseconds(step)} outside of its device's step"
    )


def stall(run: ExplainedRun, other_side: OtherSide) -> Cost | None:
    """Single steps that took many times as long as the others, if no cause before this one has their time."""
    stretch = run.window.stretch
    parts: Sequence[str] = OWN
    if run.counts == CORE:
        parts = DEVICE
    slowest = stretch.slowest(parts)
    longest = find_stall(stretch, parts, slowest)
    if longest is None or longest.column == "data_wait":
        return None
    if run.counts != CORE and longest.column != "device" and longest.rank in (None, slowest):
        return None  # `between_steps` has its time
    return Cost(longest.lost / run.steps, str(longest))


def straggler(run: ExplainedRun, other_side: OtherSide) -> Cost | None:
    """One rank that is later than the others, beyond waiting for its data: all others wait for it in every step.

    The rank that waits least for the others, where each rank has a replica of its own, so that it waits only at the
    end of a step; otherwise the device of node 0 with the lowest clock.
    """
    layout = run.record.layout
    waits = _collective_waits(run)
    if layout is None or layout.tp * layout.pp > 1 or len(waits) < 2:
        return _find_late_device(run)
    number = min(run.numbers, key=waits.__getitem__)
    loading = [run.column("data_wait", rank) for rank in run.numbers]
    late = max(0.0, _lag(waits, number) - max(0.0, -_lag(loading, number)))
    rank = run.ranks[number]
    place = f"node {rank.node}, host {rank.host}, device {rank.local_rank}"
    if rank.uuid:
        place += f", {rank.uuid}"
    clause = f"rank {number} ({place}) was {_milliseconds(late)} later per step than the others"
    if run.waited:
        more = -_lag(run.waited, number)
        if more > 0.05:
            clause += f"; it waited for a processor in {more:.0%} more of its time"
    device = rank.local_rank
    if rank.node == 0 and device is not None and 1 < len(run.slowed) > device:
        more = -_lag(run.slowed, device)
        if more > 0.02:
            clause += f"; its device's clock was {more:.0%} below the others'"
    return Cost(late, clause)


def _collective_waits(run: ExplainedRun) -> list[float]:
    """What each rank waits in a collective for the others, the median, seconds; empty if not known of all."""
    stretch, name = run.section.stretch(), "collective_wait_median"
    waits = []
    for rank in run.ranks:
        wait = of_rank(stretch, rank.rank).get(name, rank.collective_wait_median)
        if wait is None:
            return []
        waits.append(wait)
    return waits


def _find_late_device(run: ExplainedRun) -> Cost | None:
    """The device of node 0 with the lowest clock, if it is alone with that."""
    if len(run.slowed) < 2:
        return None
    device = max(range(len(run.slowed)), key=run.slowed.__getitem__)
    more = -_lag(run.slowed, device)
    return Cost(more * run.core, f"device {device}{run.where} had a clock {more:.0%} below the others'")


def _lag(values: Sequence[float], index: int) -> float:
    """How much a value is below the median of all others."""
    return median([value for number, value in enumerate(values) if number != index]) - values[index]


def quota(run: ExplainedRun, other_side: OtherSide) -> Cost | None:
    """The limit of processors that the run's control group has."""
    if not _wait_for_limit(run):
        return None
    clause = f"its control group may use {run.cpu.quota:g} processors{run.where}"
    return _wait_cost(
        run, _wait_for_limit(run), f"{clause} and had used them up in {run.cpu.throttled:.0%} of its periods"
    )


def tenants(run: ExplainedRun, other_side: OtherSide) -> Cost | None:
    """Other processes or virtual machines on the processors."""
    others = others_on_processors(run.cpu)
    if not others:
        return None
    return _wait_cost(run, _wait_for_others(run), f"{', '.join(others)}{run.where}")


def crowded(run: ExplainedRun, other_side: OtherSide) -> Cost | None:
    """More ranks and threads than processors."""
    if others_on_processors(run.cpu):
        return None
    processors = _usable_processors(run) or run.record.system.cpu.logical or 1
    clause = f"the run had {run.threads} ranks and threads on {processors} processors{run.where}"
    return _wait_cost(run, _wait_for_others(run), clause)


def _wait_for_limit(run: ExplainedRun) -> float:
    """The share of its time that every rank waited because of the limit of processors."""
    if not run.waited or run.cpu.quota is None or not run.cpu.throttled:
        return 0.0
    return min(*run.waited, run.cpu.throttled * max(0.0, 1 - run.cpu.quota / run.threads))


def _wait_for_others(run: ExplainedRun) -> float:
    """The share of its time that every rank waited for a processor beyond that."""
    return min(run.waited, default=0.0) - _wait_for_limit(run)


def _wait_cost(run: ExplainedRun, share: float, clause: str) -> Cost | None:
    """What waiting for processors cost; what one rank waited beyond all others is a straggler's."""
    if not run.waited:
        return None
    return Cost(share * run.time, f"{clause}; every rank waited {min(run.waited):.0%} of its time for a processor")


def device_idle(run: ExplainedRun, other_side: OtherSide) -> Cost | None:
    """Devices without work within their steps: the host starts kernels more slowly than they run.

    A driver's figure is of the time since the sample before, so the first one says nothing of the training.
    """
    samples = run.record.telemetry.samples if run.record.telemetry is not None else None
    utilisations = [device.util_mean for device in run.devices if device.util_mean is not None]
    if not utilisations or not samples:
        return None
    idle = 1 - max(utilisations) - 1 / samples
    lost = idle * run.loop - (run.loop - run.core)
    if lost < IDLE * run.loop:
        return None
    return Cost(lost, f"the busiest device{run.where} had no kernel to run in {idle:.0%} of the time")


def power(run: ExplainedRun, other_side: OtherSide) -> Cost | None:
    """Lower clocks because of a limit of power."""
    reason, seconds = run.throttled
    clauses = []
    if "power" in reason:
        clauses.append(f"{reason} for {seconds:.0f} s")
    for limit, default in {(device.power_limit_w, device.power_limit_default_w) for device in run.devices}:
        if is_capped(limit, default):
            clauses.append(f"limit {limit:g} W, the device's own is {default:g} W")
    if "power" in reason:
        return _clock_cost(run, "; ".join(clauses))
    if clauses and not reason and not run.slowed:  # without clocks, a limit below the device's own is all there is
        return _clock_cost(run, "; ".join(clauses))
    return None


def throttling(run: ExplainedRun, other_side: OtherSide) -> Cost | None:
    """Lower clocks because of heat, or for another reason than power."""
    reason, seconds = run.throttled
    if not reason or "power" in reason:
        return None
    hottest = max((device.temperature_max_c or 0.0 for device in run.devices), default=0.0)
    return _clock_cost(run, f"{reason} for {seconds:.0f} s, up to {hottest:.0f} degrees Celsius")


def clocks(run: ExplainedRun, other_side: OtherSide) -> Cost | None:
    """Lower clocks that nothing but a setting accounts for."""
    reason, _ = run.throttled
    if reason or not run.slowed:
        return None
    return _clock_cost(run, "no reason but a setting was reported")


def _clock_cost(run: ExplainedRun, reason: str) -> Cost:
    """What lower clocks cost that all devices have; a device that has even lower ones is a straggler."""
    if not run.slowed:
        return Cost(None, f"{reason}, at clocks not known")
    share = min(run.slowed)
    clock = max(_mean_clock(device) or 0.0 for device in run.devices)
    clause = f"every device{run.where} was clocked at least {share:.0%} below its highest, {clock:.0f} MHz at most"
    return Cost(share * run.core, f"{clause}: {reason}")


def _mean_clock(device: DeviceTelemetry) -> float | None:
    """The mean clock of a device while it was not idle, MHz; of all samples in a record that does not say."""
    return device.sm_clock_busy_mhz or device.sm_clock_mean_mhz


def precision(run: ExplainedRun, other_side: OtherSide) -> Cost | None:
    """A slower precision than the expected one: what its matrix products take longer at the device's peaks."""
    expected = None
    for condition in other_side.conditions:
        if condition.name == "precision":
            expected = condition.expected
            break
    peak, expected_peak = run.peak(run.precision), run.peak(expected)
    if peak is None or expected_peak is None or peak >= expected_peak:
        return None
    ceiling = run.ceiling or REACHED * peak
    lost = run.products(ceiling) * (1 - ceiling / max(ceiling, REACHED * expected_peak))
    return Cost(lost, f"matrix products ran in {run.precision}, and {expected} is expected")


def low_ceiling(run: ExplainedRun, other_side: OtherSide) -> Cost | None:
    """A matrix product that is slow by itself, beyond what lower clocks account for: against the baseline's, or
    against what its device reaches."""
    ceiling = run.ceiling
    if not ceiling or not other_side.steady or precision(run, other_side) is not None:
        return None
    ceilings = [baseline.ceiling for baseline in other_side.runs if baseline.ceiling]
    if ceilings:
        expected, source = sum(ceilings) / len(ceilings), "the baseline's"
    elif other_side.reachable is not None:
        expected, source = other_side.reachable.value * 1e12, f"{other_side.reachable.source} at this clock"
    else:
        return None
    expected *= 1 - min(run.slowed, default=0.0)
    if ceiling >= LOW_ROOF * expected:
        return None
    clause = f"a matrix product reached {ceiling / 1e12:.3g} TFLOP/s, {source} is {expected / 1e12:.3g}"
    return Cost(run.products(ceiling) * (1 - ceiling / expected), clause)


def steady(runs: Sequence[ExplainedRun]) -> bool:
    """Whether the matrix products of several ranks or runs were about as fast: one alone may have been disturbed."""
    ceilings: list[float] = []
    for run in runs:
        ceilings.extend(run.section.ceilings)
    return len(ceilings) > 1 and min(ceilings) >= LOW_ROOF * max(ceilings)


def pinned(run: ExplainedRun, other_side: OtherSide) -> Cost | None:
    """Fewer processors than the baseline may use, or than the machine has."""
    usable = _usable_processors(run)
    if other_side.runs:
        counts = [_usable_processors(baseline) for baseline in other_side.runs]
        available, source = min((count for count in counts if count), default=None), "the baseline"
    else:
        available, source = run.record.system.cpu.logical, "the machine"
    if not usable or available is None or usable >= available:
        return None
    return Cost(None, f"the run could use {usable} processors{run.where}, {source} {available}")


def _usable_processors(run: ExplainedRun) -> int | None:
    return run.record.system.cpu.usable


def kernels(run: ExplainedRun, other_side: OtherSide) -> Cost | None:
    """A kernel of the framework where a faster one exists, or another one than the baseline's."""
    clauses = []
    if other_side.runs:
        of_baseline = _name_kernels(other_side.runs[0])
        for name, kernel in _name_kernels(run).items():
            if name in of_baseline and kernel != of_baseline[name]:
                clauses.append(f"{name} ran as {kernel}, the baseline's as {of_baseline[name]}")
    elif run.accelerator is not None:
        for name, kernel in _name_kernels(run).items():
            if kernel in _SLOW_KERNELS[name]:
                clauses.append(f"{name} ran as {kernel}, not as a fused kernel")
    if not clauses:
        return None
    return Cost(None, "; ".join(clauses))


def _name_kernels(run: ExplainedRun) -> dict[str, str]:
    """The kernels that the record names, by what they compute."""
    names: dict[str, object] = {name: run.record.conditions.get(name) for name in _KERNELS_IN_CONDITIONS}
    if run.record.quality is not None:
        names.update(run.record.quality.training or {})
    kernels_of_run = {}
    for name in _SLOW_KERNELS:
        kernel = names.get(name)
        if isinstance(kernel, str):
            kernels_of_run[name] = brief(kernel)
    return kernels_of_run


def device_tenants(run: ExplainedRun, other_side: OtherSide) -> Cost | None:
    """Processes of others on a device, or memory that was in use there before the run."""
    others = others_on_devices(run.devices)
    if not others:
        return None
    return Cost(None, f"{', '.join(others)}{run.where}")


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


class Kind(NamedTuple):
    """A kind of cause: what to do about it, and what finds it in a run."""

    name: str
    title: str
    action: str
    find: Callable[[ExplainedRun, OtherSide], Cost | None]


CAUSES = (
    Kind(
        "data_wait",
        "waiting for data",
        "put the prepared data on a local disk, or give the loader more workers (a condition of most claims)",
        data_wait,
    ),
    Kind(
        "evaluation",
        "evaluations",
        "compare the number of evaluations and their batch size with the row's; they are conditions",
        evaluation,
    ),
    Kind(
        "between_steps",
        "host between steps",
        "look for a slow processor, or for something that slows the host: a profiler, debugging variables, logging",
        between_steps,
    ),
    Kind(
        "stall",
        "a stalled step",
        "run it again undisturbed; look for what the machine did at that time, such as a slow disk or network",
        stall,
    ),
    Kind(
        "straggler",
        "a slow rank",
        "run the case on that device alone; look for heat, errors in the kernel's log and other processes there",
        straggler,
    ),
    Kind(
        "cpu_quota",
        "limit of processors",
        "raise the limit: `docker run --cpus`, resources.limits.cpu of a Kubernetes container, CPUQuota of a unit",
        quota,
    ),
    Kind("other_tenants", "other tenants", "stop what else runs on the machine, or reserve processors", tenants),
    Kind("processors", "too few processors", "use fewer ranks or threads per node, or a larger machine", crowded),
    Kind(
        "pinned",
        "fewer processors",
        "run without taskset or a cpuset, or with as many processors on both sides",
        pinned,
    ),
    Kind(
        "device_idle",
        "device idle",
        "look for threads and processes that hold the host's processors, and compare with a faster host",
        device_idle,
    ),
    Kind(
        "power_cap",
        "power limit",
        "at the device's own limit this is normal for large matrix products; restore a limit that was lowered",
        power,
    ),
    Kind("throttling", "throttling", "check the cooling: fans, air flow, the temperature of the room", throttling),
    Kind("clocks", "low clocks", "reset the device's application clocks and locked clocks", clocks),
    Kind(
        "precision",
        "a slower precision",
        "run with the precision of the row (`--precision`), and unset variables that override it (of TF32, say)",
        precision,
    ),
    Kind(
        "low_ceiling",
        "a slow device",
        "run the case on each device alone, and compare their models, clocks, partitions and error correction",
        low_ceiling,
    ),
    Kind(
        "kernel_fallback",
        "slower kernels",
        "use the image that flagbench builds for this stack, or install the fused kernels (apex, flash-attn)",
        kernels,
    ),
    Kind(
        "device_tenants",
        "other tenants on a device",
        "stop the other processes on the device, and run again",
        device_tenants,
    ),
)
