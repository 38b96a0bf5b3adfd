"""Causes whose cost was measured: each says what share of a run's time it took.

All shares are of the time that a rate counts (`Run.time`). A rank that is late makes all others wait, so what counts
is the latest rank, and what all of them share counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from flagbench.verdict.conditions import ConditionResult
from flagbench.verdict.disturbances import LEAST_SECONDS, NO_THROTTLING
from flagbench.verdict.explain.run import CORE, LOOP, WHOLE, Run, clock_of, others

REACHED = 0.75
"""The share of its datasheet's peak that a device's matrix product reaches: FlagPerf measured 79 to 98 % on an A100
(base/benchmarks/computation-*), and 80 % was measured on an H200."""
LOW = 0.9
"""A ceiling below that share of the expected one is low: two measurements of one processor differ by less."""
QUIET = 0.25
"""Logical processors; fewer kept busy by others are a machine's own services."""
STOLEN = 0.02
"""The share of processors; less taken by other virtual machines is noise."""
_POWER = ("sw_power_cap", "hw_power_brake_slowdown")
"""NVML's reasons for a lower clock that are about power."""


class Loss(NamedTuple):
    """What a cause cost one run: a share of its time, and what was seen, as a clause."""

    share: float
    seen: str


class Measured(NamedTuple):
    """A cause, and what finds its cost in a run, as a share of what a rate counts."""

    name: str
    title: str
    action: str
    find: Callable[[Run, str], Loss | None]


def data_wait(run: Run, counts: str) -> Loss | None:
    """Waiting for the next batch; a device that still computes meanwhile loses nothing."""
    rank = max(run.numbers, key=lambda number: run.column("data_wait", number))
    wait = run.column("data_wait", rank)
    lost = min(wait, run.time(CORE if counts == CORE else LOOP) - run.column("device", rank))
    step = run.own(rank)
    return Loss(lost / run.time(counts), f"rank {rank} waited {_ms(wait)} of {_ms(step)} per step for its next batch")


def evaluation(run: Run, counts: str) -> Loss | None:
    """Evaluations within the training; only the rate of the whole counts them."""
    if counts != WHOLE or not run.evaluated:
        return None
    seconds, count = run.record.timing.eval or 0.0, len(run.record.quality.evaluations if run.record.quality else ())
    return Loss(run.evaluated, f"{count} evaluations took {seconds:.1f} s, {run.evaluated:.0%} of the training")


def between_steps(run: Run, counts: str) -> Loss | None:
    """What the host does between steps while the device waits, but for waiting for data."""
    if counts == CORE:
        return None
    rank = max(run.numbers, key=run.own)
    lost = run.own(rank) - run.column("device", rank) - run.column("data_wait", rank)
    return Loss(
        lost / run.time(counts), f"rank {rank} spent {_ms(lost)} of {_ms(run.own(rank))} outside of its device's step"
    )


def straggler(run: Run, counts: str) -> Loss | None:
    """One rank that is later than the others, beyond waiting for its data: all others wait for it in every step.

    By what ranks wait for each other, where each has a replica; otherwise by the clocks of node 0's devices.
    """
    late = _late_rank(run)
    if late is None:
        return _late_device(run, counts)
    rank, seconds = late
    entry = run.ranks[rank]
    place = f"rank {rank} (node {entry.node}, host {entry.host}, device {entry.local_rank}"
    place += f", {entry.uuid})" if entry.uuid else ")"
    seen = f"{place} was {_ms(seconds)} later per step than the others"
    waited = run.waited
    if waited and waited[rank] > others(waited, rank) + 0.05:
        seen += f"; it waited {waited[rank]:.0%} of its time for a processor, the others {others(waited, rank):.0%}"
    slowed = run.slowed
    if entry.node == 0 and entry.local_rank is not None and 1 < len(slowed) > entry.local_rank:
        behind = slowed[entry.local_rank] - others(slowed, entry.local_rank)
        seen += f"; its device's clock was {behind:.0%} below the others'" if behind > 0.02 else ""
    return Loss(seconds / run.time(counts), seen)


def _late_rank(run: Run) -> tuple[int, float] | None:
    """The rank that waits least for the others, and how much later it is, seconds per step."""
    waits = run.waits
    known = [wait for wait in waits if wait is not None]
    if not run.replicated or len(known) < len(waits) or len(waits) < 2:
        return None
    rank = min(run.numbers, key=known.__getitem__)
    loading = [run.column("data_wait", number) for number in run.numbers]
    late = others(known, rank) - known[rank] - max(0.0, loading[rank] - others(loading, rank))
    return rank, max(0.0, late)


def _late_device(run: Run, counts: str) -> Loss | None:
    """The device of node 0 with the lowest clock, if it is alone with that."""
    slowed = run.slowed
    if len(slowed) < 2:
        return None
    device = max(range(len(slowed)), key=slowed.__getitem__)
    share = (slowed[device] - others(slowed, device)) * run.core / run.time(counts)
    behind = slowed[device] - others(slowed, device)
    return Loss(share, f"device {device}{run.where} had a clock {behind:.0%} below the others'")


def quota(run: Run, counts: str) -> Loss | None:
    """The limit of processors that the run's control group has."""
    limit, throttled, ranks = run.cpu.quota, run.cpu.throttled, _threads(run)
    if limit is None or not throttled or not run.waited:
        return None
    share = min(_waited(run), throttled * max(0.0, 1 - limit / ranks))
    return Loss(
        share,
        f"its control group may use {limit:g} of {_logical(run)} processors{run.where} and had used them up in "
        f"{throttled:.0%} of its periods; every rank waited {_waited(run):.0%} of its time for a processor",
    )


def tenants(run: Run, counts: str) -> Loss | None:
    """Other processes or virtual machines on the processors."""
    busy, stolen = run.cpu.others_mean or 0.0, run.cpu.steal_mean or 0.0
    if busy < QUIET and stolen < STOLEN:
        return None
    return _rest(
        run,
        f"other processes kept {busy:.1f} of {_logical(run)} processors busy{run.where}, other virtual machines took "
        f"{stolen:.0%}",
    )


def crowded(run: Run, counts: str) -> Loss | None:
    """More ranks and threads than processors."""
    busy, stolen = run.cpu.others_mean or 0.0, run.cpu.steal_mean or 0.0
    if busy >= QUIET or stolen >= STOLEN:
        return None
    return _rest(run, f"the run had {_threads(run)} ranks and threads on {_logical(run)} processors{run.where}")


def _rest(run: Run, seen: str) -> Loss | None:
    """Waiting for processors that a quota does not account for."""
    if not run.waited:
        return None
    limited = quota(run, CORE)
    rest = _waited(run) - (limited.share if limited else 0.0)
    return Loss(rest, f"{seen}; every rank waited {_waited(run):.0%} of its time for a processor")


def _waited(run: Run) -> float:
    """The share of its time that every rank waited for a processor; what one waited beyond it is a straggler's."""
    return min(run.waited)


def _threads(run: Run) -> int:
    software = run.record.raw.get("software", {})
    threads = software.get("threads") if isinstance(software, dict) else None
    return run.record.system.devices_per_node * (threads if isinstance(threads, int) and threads > 0 else 1)


def _logical(run: Run) -> int:
    return run.record.system.cpu.logical or 1


def power(run: Run, counts: str) -> Loss | None:
    """Lower clocks because of a limit of power."""
    reason, seconds = longest_throttling(run)
    if reason not in _POWER:
        return None
    return _clocks(run, counts, "; ".join(filter(None, (f"{reason} for {seconds:.0f} s", power_limits(run)))))


def power_limits(run: Run) -> str:
    """Limits of power that are below the devices' own, as a clause; empty if there are none."""
    limits = {(d.power_limit_w, d.power_limit_default_w) for d in run.devices}
    capped = [f"{limit:g} W, the device's own is {own:g} W" for limit, own in limits if limit and own and limit < own]
    return f"the limit of power in force is {'; '.join(capped)}" if capped else ""


def throttling(run: Run, counts: str) -> Loss | None:
    """Lower clocks because of heat, or for another reason than power."""
    reason, seconds = longest_throttling(run)
    if reason is None or reason in _POWER:
        return None
    hottest = max((d.temperature_max_c or 0.0 for d in run.devices), default=0.0)
    return _clocks(run, counts, f"{reason} for {seconds:.0f} s, up to {hottest:.0f} degrees Celsius")


def clocks(run: Run, counts: str) -> Loss | None:
    """Lower clocks that nothing but a setting accounts for."""
    if longest_throttling(run)[0] is not None:
        return None
    return _clocks(run, counts, "no reason but a setting was reported")


def longest_throttling(run: Run) -> tuple[str | None, float]:
    """The reason that throttled the devices for longest, and its seconds; None if none did."""
    longest: dict[str, float] = {}
    for device in run.devices:
        for reason, seconds in device.throttle_seconds.items():
            if reason not in NO_THROTTLING and seconds >= LEAST_SECONDS:
                longest[reason] = max(float(seconds), longest.get(reason, 0.0))
    return max(longest.items(), key=lambda item: item[1], default=(None, 0.0))


def _clocks(run: Run, counts: str, why: str) -> Loss | None:
    """What lower clocks cost that all devices have; a device that has even lower ones is a straggler."""
    if not run.slowed:
        return None
    share = min(run.slowed)
    clock = max(clock_of(device) or 0.0 for device in run.devices)
    seen = (
        f"every device{run.where} was clocked at least {share:.0%} below its highest, {clock:.0f} MHz at most: {why}"
    )
    return Loss(share * run.core / run.time(counts), seen)


def precision(run: Run, counts: str, conditions: Sequence[ConditionResult]) -> Loss | None:
    """A slower precision than the expected one: what its matrix products take longer at the device's peaks."""
    found = slower_precision(run, conditions)
    if found is None:
        return None
    here, there = found
    ceiling = run.ceiling or REACHED * here.peak
    share = _products(run, ceiling) * (1 - ceiling / max(ceiling, REACHED * there.peak)) * run.core / run.time(counts)
    return Loss(share, f"matrix products ran in {here.name}, and {there.name} is expected")


class Precision(NamedTuple):
    """A precision and the device's peak in it, FLOP/s."""

    name: str
    peak: float


def slower_precision(run: Run, conditions: Sequence[ConditionResult]) -> tuple[Precision, Precision] | None:
    """The precision of a run and the expected one, if the device has a higher peak in that."""
    names = next(((c.here, c.expected) for c in conditions if c.name == "precision"), ())
    known = [Precision(name, peak) for name in names if isinstance(name, str) and (peak := run.peak(name))]
    return (known[0], known[1]) if len(known) == 2 and known[0].peak < known[1].peak else None


def ceiling(run: Run, counts: str, base: Sequence[Run]) -> Loss | None:
    """A matrix product that is slow by itself, beyond what lower clocks account for.

    `base`: the runs of the baseline; without one, what the datasheet's peak allows.
    """
    found, executed = run.ceiling, run.record.conditions.get("precision")
    known = [each.ceiling for each in base if each.ceiling]
    peak = run.peak(executed) if isinstance(executed, str) else None
    expected = sum(known) / len(known) if known else REACHED * peak if peak else None
    if not found or not expected:
        return None
    expected *= 1 - min(run.slowed, default=0.0)
    if found >= LOW * expected:
        return None
    share = _products(run, found) * (1 - found / expected) * run.core / run.time(counts)
    source = "the baseline's" if known else f"{REACHED:.0%} of the datasheet's peak at this clock"
    return Loss(share, f"a matrix product reached {found / 1e12:.3g} TFLOP/s, {source} is {expected / 1e12:.3g}")


def _products(run: Run, ceiling: float) -> float:
    """The share of a device's time that its matrix products take at a ceiling, FLOP/s."""
    return min(1.0, run.flops / ceiling / run.core)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


MEASURED = (
    Measured(
        "data_wait",
        "waiting for data",
        "put the prepared data on a local disk, or give the loader more workers (a condition of most claims)",
        data_wait,
    ),
    Measured(
        "evaluation",
        "evaluations",
        "compare the number of evaluations and their batch size with the row's; they are conditions",
        evaluation,
    ),
    Measured(
        "between_steps",
        "host between steps",
        "look for a slow processor, or for something that slows the host: a profiler, debugging variables, logging",
        between_steps,
    ),
    Measured(
        "straggler",
        "a slow rank",
        "run the case on that device alone; look for heat, errors in the kernel's log and other processes there",
        straggler,
    ),
    Measured(
        "cpu_quota",
        "limit of processors",
        "raise the limit: `docker run --cpus`, resources.limits.cpu of a Kubernetes container, CPUQuota of a unit",
        quota,
    ),
    Measured(
        "other_tenants",
        "other tenants",
        "stop what else runs on the machine, or reserve processors for the run",
        tenants,
    ),
    Measured("processors", "too few processors", "use fewer ranks or threads per node, or a larger machine", crowded),
    Measured(
        "power_cap",
        "power limit",
        "ask the owner to restore the device's own limit (`nvidia-smi -q -d POWER` shows it), or check the supply",
        power,
    ),
    Measured(
        "throttling", "throttling", "check the cooling: fans, air flow, the temperature of the room", throttling
    ),
    Measured(
        "clocks",
        "low clocks",
        "ask the owner to reset the application clocks (`nvidia-smi -rac`) and locked clocks (`nvidia-smi -rgc`)",
        clocks,
    ),
)

ACTIONS = {cause.name: (cause.title, cause.action) for cause in MEASURED}
"""The title and the action of each cause by its name."""
