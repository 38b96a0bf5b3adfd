"""Whether a record's numbers are possible: nothing exceeds its device, and no part takes longer than the whole.

Limits of devices are those of the stacks' manifests, each with its source; what no source gives is not checked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone

from flagbench.records.model import Metric, Record
from flagbench.verdict.subject import Subject, differ

GIB = 2.0**30
ROUNDING = 1e-9
POWER_PEAK = 1.15
"""How far a sample of power may exceed the board's limit: the limit holds on average, NVML's readings are within 5 %,
and on A100 they are instantaneous (NVML API reference, nvmlDeviceGetPowerUsage)."""
POWER_MEAN = 1.05
"""How far the mean power may exceed it: NVML's readings are within 5 %."""
CLOCK_STEP = 1.01
"""How far a clock may exceed the highest one: clocks are read in steps of 15 MHz."""
LEAST_MEMORY = 0.9
"""The least share of its memory that a device reports: an A100 of 40 GiB has 39.4. A slice of a device has another
name."""
LONG = 10.0
"""Seconds: the samples of a longer time, a second apart, say what the mean power was."""
ENERGY = 2.0
"""How far the energy may be from the mean power times its time: both are of the same samples, at other times."""
CELSIUS = (-40.0, 125.0)
"""Temperatures, degrees Celsius, at which silicon devices can be in use at all (the military range of parts is -55 to
125)."""
MACHINES_APART = 3600.0
"""Seconds by which the clocks of the launcher's machine and of the run's may differ; as record.read.CLOCK_SKEW."""
PROCESSOR = 1.05
"""How far the time of a thread by the kernel's clock of processors may exceed that of its run."""
DRIFT = 1e-4
"""Largest relative drift between two clocks: a device's and the host's, or those of two machines."""

BYTES_PER_SECOND: Mapping[str, float] = {
    **{f"{prefix}B/s": 1000.0**power for power, prefix in enumerate(("", "k", "M", "G", "T"))},
    **{f"{prefix}iB/s": 1024.0**power for power, prefix in enumerate(("K", "M", "G", "T"), 1)},
}


def problems(subject: Subject) -> Iterator[str]:
    """Every number of a record that is not possible, one clause each."""
    yield from _values(subject.record)
    yield from _utilisation(subject)
    yield from _memory(subject)
    yield from _telemetry(subject)
    yield from _bandwidth(subject)
    yield from _times(subject.record)
    yield from _processor(subject.record)
    yield from _launch(subject.record)


def _above(value: float, limit: float, tolerance: float = 1.0) -> bool:
    return value > limit * tolerance * (1 + ROUNDING)


def _values(record: Record) -> Iterator[str]:
    """No negative amount, and no share of more than everything."""
    for metric in record.metrics:
        if metric.value < 0 and metric.unit != "nats":
            yield f"{metric.name} is {metric.value:.6g} {metric.unit}"
        elif metric.unit == "fraction" and not metric.name.startswith(("mfu", "hfu")) and _above(metric.value, 1.0):
            yield f"{metric.name} is {metric.value:.6g}, which is a fraction"


def achieved(subject: Subject) -> float | None:
    """FLOP/s of a device in the window, recomputation included; None if the record does not say.

    By the record, but no fewer than the window's samples take by the formula of the case.
    """
    flops, window = subject.record.flops, subject.record.window
    if flops is None or window is None or not window.seconds:
        return None
    per, length = subject.flops_of_unit, subject.counted("tokens_per_sample")
    units = window.samples * (length or 0) if subject.case.unit == "tokens" else window.samples
    return (max(flops.executed, (per or 0.0) * units) + (flops.recomputed or 0)) / window.seconds / subject.world


def _utilisation(subject: Subject) -> Iterator[str]:
    """No more FLOPs than the datasheet's peak; nothing useful that was not executed."""
    record, flops = subject.record, subject.record.flops
    metrics = {metric.name: metric.value for metric in record.metrics}
    hfu, mfu = metrics.get("hfu"), metrics.get("mfu")
    for name in ("hfu", "mfu"):
        if name in metrics and _above(metrics[name], 1.0):
            yield f"{name} is {metrics[name]:.4g}: more than the peak of the device"
    if hfu is not None and mfu is not None and _above(mfu, hfu):
        yield f"mfu is {mfu:.6g}, more than hfu, {hfu:.6g}"
    useful = metrics.get("mfu_useful")
    if useful is not None and mfu is not None and _above(useful, mfu):
        yield f"mfu_useful is {useful:.6g}, more than mfu, {mfu:.6g}"
    if flops is None:
        return
    if _above(flops.useful, flops.executed):
        yield f"flops.useful is {flops.useful:.6g}, more than flops.executed, {flops.executed:.6g}"
    known, speed = subject.device, achieved(subject)
    precision = record.conditions.get("precision") or subject.config.get("precision")
    peak = known.peaks.get(str(precision)) if known else None
    if peak is None:
        return
    if speed is not None and _above(speed, peak.flops):
        yield f"its FLOPs over its window are {speed:.4g} FLOP/s per device, above the peak of {peak.flops:.4g}"
    if flops.measured_ceiling is not None and _above(flops.measured_ceiling.flops, peak.flops):
        yield (
            f"flops.measured_ceiling is {flops.measured_ceiling.flops:.4g} FLOP/s, above the device's peak of "
            f"{peak.flops:.4g}"
        )


def _memory(subject: Subject) -> Iterator[str]:
    """No more memory in use than the device has; no device with more than its model has."""
    devices = subject.record.system.devices
    known = subject.device
    sizes = [device.memory_bytes for device in devices if device.memory_bytes is not None]
    for size in dict.fromkeys(sizes):
        if known is not None and not LEAST_MEMORY <= size / (known.memory_gib * GIB) <= 1 + ROUNDING:
            yield f"a device has {size / GIB:.4g} GiB by system.devices, but {known.name} has {known.memory_gib:g}"
    most = min([*([max(sizes)] if sizes else []), *([known.memory_gib * GIB] if known else [])], default=None)
    if most is None:
        return
    for name in ("mem_peak", "allocator_peak"):
        metric = subject.record.metric(name)
        if metric is not None and metric.unit == "GiB" and _above(metric.value, most / GIB):
            yield f"{name} is {metric.value:.4g} GiB, but a device has {most / GIB:.4g}"
    if subject.record.telemetry is None:
        return
    for device in subject.record.telemetry.devices:
        for name in ("mem_used_max_bytes", "mem_used_before_bytes"):
            used = getattr(device, name)
            if used is not None and _above(used, most):
                yield f"telemetry has {name} of {used / GIB:.4g} GiB, but a device has {most / GIB:.4g}"


def _telemetry(subject: Subject) -> Iterator[str]:
    """Power, clocks, temperature and utilisation within the limits of the device."""
    if subject.record.telemetry is None:
        return
    limits = subject.device.limits if subject.device else None
    power, clock = (limits.power_watts, limits.sm_clock_mhz) if limits else (None, None)
    for device in subject.record.telemetry.devices:
        if device.name is not None and subject.device is not None and device.name not in subject.names:
            monitored = next(filter(None, (s.accelerator(device.name) for s in subject.case.stacks.values())), None)
            if monitored is None or monitored.name != subject.device.name:
                yield differ("a device of system", subject.device.name, "by telemetry it is", device.name)
        for name, limit, tolerance in (
            ("power_max_w", power, POWER_PEAK),
            ("power_mean_w", power, POWER_MEAN),
            ("power_limit_w", power, POWER_MEAN),
            ("sm_clock_mean_mhz", clock, CLOCK_STEP),
            ("sm_clock_min_mhz", clock, CLOCK_STEP),
            ("sm_clock_busy_mhz", clock, CLOCK_STEP),
        ):
            value = getattr(device, name)
            if value is not None and value <= 0:
                yield f"telemetry has {name} of {value:.5g}: a device that works has more"
            if value is not None and limit is not None and _above(value, limit.value, tolerance):
                yield f"telemetry has {name} of {value:.5g}, but the device's limit is {limit.value:g}"
        least, average = device.sm_clock_min_mhz, device.sm_clock_mean_mhz
        if least is not None and average is not None and _above(least, average, 1 + 1e-3):
            yield f"telemetry has a lowest clock of {least:.5g} MHz, more than the mean of {average:.5g} MHz"
        heat = device.temperature_max_c
        if heat is not None and not CELSIUS[0] <= heat <= CELSIUS[1]:
            yield f"telemetry has a temperature of {heat:g} degrees Celsius"
        if device.util_mean is not None and not 0 <= device.util_mean <= 1 + ROUNDING:
            yield f"telemetry has a utilisation of {device.util_mean:g}, which is a fraction"
        mean, most = device.power_mean_w, device.power_max_w
        if mean is not None and most is not None and _above(mean, most, 1 + 1e-3):
            yield f"telemetry has a mean power of {mean:.5g} W, more than the maximum of {most:.5g} W"
        joules, seconds = device.energy_j, device.energy_seconds
        if joules is None or seconds is None:
            continue
        if joules <= 0 and seconds >= LONG:
            yield f"telemetry has {joules:.5g} J in {seconds:.5g} s: a device that works takes more"
        if power is not None and joules > power.value * POWER_PEAK * seconds + 1:
            yield f"telemetry has {joules:.5g} J in {seconds:.5g} s, more than a power of {power.value:g} W gives"
        if mean is not None and seconds >= LONG and not mean / ENERGY <= joules / seconds <= mean * ENERGY:
            yield f"telemetry has {joules:.5g} J in {seconds:.5g} s, but a mean power of {mean:.5g} W"
        if (took := subject.record.duration) is not None and seconds > took * (1 + DRIFT) + LONG:
            yield f"telemetry has the energy of {seconds:.5g} s, but its run took {took:.5g} s"


def _processor(record: Record) -> Iterator[str]:
    """The memory of node 0, and the time that the main threads of ranks ran or waited for a processor."""
    used, has = record.telemetry and record.telemetry.cpu.mem_used_max_bytes, record.system.memory_bytes
    if used and has and _above(used, has):
        yield f"telemetry.cpu has {used / GIB:.4g} GiB in use, but the machine has {has / GIB:.4g}"
    for rank in record.ranks:
        seconds = (rank.processor_seconds or 0) + (rank.processor_wait_seconds or 0)
        if record.duration is not None and _above(seconds, record.duration, PROCESSOR):
            yield f"rank {rank.rank} ran or waited {seconds:.6g} s, but its run took {record.duration:.6g} s"
            return


def _bandwidth(subject: Subject) -> Iterator[str]:
    """No metric in bytes per second above the device's memory bandwidth."""
    limit = subject.device.limits.memory_bandwidth if subject.device else None
    if limit is None:
        return
    for metric in subject.record.metrics:
        scale = BYTES_PER_SECOND.get(metric.unit)
        if scale is not None and _above(metric.value * scale / _devices(metric, subject), limit.value):
            yield (
                f"{metric.name} is {metric.value:.5g} {metric.unit}, but the device's memory has "
                f"{limit.value / 1e9:g} GB/s"
            )


def _devices(metric: Metric, subject: Subject) -> int:
    return {"job": subject.world, "node": subject.record.system.devices_per_node}.get(metric.scope, 1)


def _times(record: Record) -> Iterator[str]:
    """Steps fit into training, and training into the whole run; rank 0's own times, seconds."""
    timing, window = record.timing, record.window
    steps = record.work.steps if record.work else 0
    # A device's clock is not the host's, and its last step may end after the host's.
    slack = 1 + DRIFT + (1 / steps if steps else 0)
    if timing.train is not None:
        for name in ("warmup", "data_wait", "step", "eval"):
            part = getattr(timing, name)
            if part is not None and _above(part, timing.train, slack):
                yield differ(f"timing.{name}", part, "timing.train, of which it is a part, is", timing.train)
        parts = (timing.step or 0) + (timing.eval or 0)
        if _above(parts, timing.train, slack):
            yield f"timing.step and timing.eval are {parts} s, but timing.train is {timing.train} s"
        for name in ("seconds", "host_seconds"):
            part = getattr(window, name, None)
            if part is not None and _above(part, timing.train, slack):
                yield differ(f"window.{name}", part, "timing.train is", timing.train)
        waited = max((rank.data_wait_total or 0 for rank in record.ranks), default=0)
        if _above(waited, timing.train, slack):
            yield differ("data_wait_total of a rank", waited, "timing.train is", timing.train)
    if timing.e2e is not None:
        parts = math.fsum(
            part or 0 for part in (timing.init, timing.eval_initial, timing.train, timing.val, timing.infer)
        )
        if _above(parts, timing.e2e, slack):
            yield f"the phases of its timing are {parts} s, but timing.e2e is {timing.e2e} s"


def _launch(record: Record) -> Iterator[str]:
    """The run fits into the time that the launcher measured, where the record has it."""
    launch = record.launch
    if launch is None:
        return
    # e2e does not count checkpoints. The launcher may be on another machine than the container engine.
    took = (record.duration or 0.0) + ((record.timing.checkpoint or 0.0) if record.timing.e2e is not None else 0.0)
    if _above(took, launch.seconds, 1 + DRIFT):
        yield f"its run took {took:.3f} s, but its launcher measured {launch.seconds:.3f} s"
    started, ended = _moment(launch.started_at), _moment(record.created_at)
    if started is None:
        yield f"launch.started_at is {launch.started_at}, which is not a time"
    if started is None or ended is None:
        return
    ended -= record.system.clock_set_seconds or 0.0
    if ended < started - MACHINES_APART:
        yield differ("created_at", record.created_at, "its launcher started it at", launch.started_at)
    elif ended - started > launch.seconds + MACHINES_APART:
        yield (
            f"created_at is {record.created_at}, {ended - started:.0f} s after its launcher started it, and the "
            f"launcher measured {launch.seconds:.3f} s"
        )


def _moment(text: str) -> float | None:
    """A time such as 2026-01-31T12:00:00Z, seconds since 1970; None if there is no such day."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None
