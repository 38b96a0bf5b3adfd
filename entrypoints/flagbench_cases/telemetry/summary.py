"""Summarises a sampler's file for the record's `telemetry`: means, maxima, energy, seconds per throttle reason."""

from __future__ import annotations

import math
from statistics import median
from typing import Any, List, Mapping, NamedTuple, Sequence, Tuple

from flagbench_cases.telemetry import energy
from flagbench_cases.telemetry.energy import pairs
from flagbench_cases.telemetry.jsonlines import read_lines

_GAP_INTERVALS = 3.0
"""Samples more than this many intervals apart have a gap between them, for which nothing is computed. One late sample
or a missing one is not yet a gap."""
_STALLED_INTERVALS = 5.0
"""If samples end more than this many intervals before the span does, the monitor stopped answering: a slow sample
takes less."""
_MAX_REASONS = 8
"""Most reasons of errors in a summary."""

_Series = List[Tuple[float, Any]]
"""Values of one device with the time of their sample, Unix seconds."""
_Stretches = Mapping[int, Sequence[energy.Stretch]]
"""Stretches of the window by the index of the device."""


class _DeviceSamples(NamedTuple):
    """What the samples say about one device."""

    series: _Series
    powers: list[energy.Sample]


def summarise(path: str, span: energy.Times | None = None, window: _Stretches | None = None) -> dict[str, Any] | None:
    """Summary of the samples within `span` (Unix seconds, inclusive; None: all); None without a file.

    Keys as in the record: `samples`, `interval_s` (median), `cpu`, `devices`, `errors`, `problems` (at any time), and
    `unavailable` if the devices could not be monitored. Power in W, `energy_j` in J over the `energy_seconds` of the
    span covered by samples, temperatures in degrees Celsius, clocks in MHz, memory in bytes, utilisation as a
    fraction. Values that were not measured are absent. The file may be empty or end with an incomplete line.

    `window`: by device, when it took the steps of the window; used for `window_energy` only.
    """
    try:
        start, lines = _read(path)
    except FileNotFoundError:
        return None
    span = span or (-math.inf, math.inf)
    samples = [line for line in lines if line["kind"] == "sample"]
    inside = [sample for sample in samples if _within(sample["t"], span)]
    summary: dict[str, Any] = {
        "samples": len(inside),
        "cpu": _cpu([sample.get("cpu", {}) for sample in inside]),
        "devices": _devices(start, lines, span, window or {}),
        "errors": sum(line["kind"] == "error" and _within(line["t"], span) for line in lines),
    }
    spacing = _spacing(inside)
    if spacing is not None:
        summary["interval_s"] = round(spacing, 3)
    if "unavailable" in start:
        summary["unavailable"] = start["unavailable"]
    problems = _problems(start, lines, span)
    if problems:
        summary["problems"] = problems
    return summary


def _problems(start: dict[str, Any], lines: Sequence[dict[str, Any]], span: energy.Times) -> list[str]:
    """A sentence if the samples end before the span does, and the reasons of errors, each once."""
    samples = [line for line in lines if line["kind"] == "sample"]
    silent = span[1] - max([span[0], *(sample["t"] for sample in samples)])
    problems = []
    stalled_seconds = _STALLED_INTERVALS * _interval(start, samples)
    # Infinite without a span: then no sample is missing after the last one.
    if math.isfinite(silent) and silent > stalled_seconds:
        problems.append(f"no sample in the last {silent:.0f} s: the monitor stopped answering")
    reasons = set()
    for line in lines:
        if line["kind"] != "error":
            continue
        reason = str(line.get("reason"))
        if "device" in line:
            reason = f"device {line['device']}: {reason}"
        reasons.add(reason)
    return problems + sorted(reasons)[:_MAX_REASONS]


def _interval(start: dict[str, Any], samples: Sequence[dict[str, Any]]) -> float:
    """Seconds between samples: as requested, or as measured if that is longer."""
    return max(start.get("interval_s", 1.0), _spacing(samples) or 0.0)


def read_start(path: str) -> dict[str, Any] | None:
    """The start line: driver, names, limits, and the processes that used the devices before the run.

    None if the file does not exist or has no start line.
    """
    try:
        return _read(path)[0] or None
    except FileNotFoundError:
        return None


def _read(path: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The start line ({} if it is missing), and the samples, errors and readings of health."""
    start: dict[str, Any] = {}
    lines: list[dict[str, Any]] = []
    for line in read_lines(path):
        if line.get("kind") == "start":
            start = line
        elif line.get("kind") in ("sample", "error", "health") and isinstance(line.get("t"), (int, float)):
            lines.append(line)
    return start, lines


def _cpu(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def values(name: str) -> list[Any]:
        return [sample[name] for sample in samples if name in sample]

    return _present(
        util_mean=_mean(values("util")),
        others_mean=_mean(values("others")),
        steal_mean=_mean(values("steal")),
        quota=min(values("quota"), default=None),
        throttled=_quota_used_up(values("throttled")),
        mem_used_max_bytes=max(values("mem_used_bytes"), default=None),
        rss_max_bytes=max(values("rss_bytes"), default=None),
    )


def _quota_used_up(counts: Sequence[Sequence[int]]) -> float | None:
    """The share of a CPU quota's periods in which it was used up; None if fewer than two samples have counts.

    `counts`: of each sample the periods so far, and those of them in which the quota was used up.
    """
    if len(counts) < 2:
        return None
    first_periods, first_used_up = counts[0]
    last_periods, last_used_up = counts[-1]
    if last_periods <= first_periods:
        return None
    return round((last_used_up - first_used_up) / (last_periods - first_periods), 4)


def _devices(
    start: dict[str, Any], lines: Sequence[dict[str, Any]], span: energy.Times, window: _Stretches
) -> list[dict[str, Any]]:
    """The summary of each device, by index."""
    samples = [line for line in lines if line["kind"] == "sample"]
    samples_of = _samples_by_device(samples)
    static = {device["index"]: device for device in start.get("devices", [])}
    interval = _interval(start, samples)
    max_gap = _GAP_INTERVALS * interval
    run_pids = set(start.get("run_pids", []))
    devices = []
    for index in sorted(set(static) | set(samples_of)):
        device_samples = samples_of.get(index, _DeviceSamples([], []))
        series = device_samples.series
        device = _device(index, static.get(index, {}), series, span, interval, run_pids)
        health = _health(index, lines, [values for t, values in series if _within(t, span)])
        if health:
            device["health"] = health
        device.update(_energy(device_samples.powers, span, window.get(index, ()), max_gap))
        devices.append(device)
    return devices


def _samples_by_device(samples: Sequence[dict[str, Any]]) -> dict[int, _DeviceSamples]:
    """The samples of all devices, which each line has together, by the index of the device."""
    samples_of: dict[int, _DeviceSamples] = {}
    for sample in samples:
        begin = sample["t"]
        end = begin + sample.get("took", 0.0)
        for device in sample.get("devices", []):
            device_samples = samples_of.setdefault(device["index"], _DeviceSamples([], []))
            device_samples.series.append((begin, device))
            power = energy.Sample(begin, end, device.get("energy_mj"), device.get("power_w"))
            device_samples.powers.append(power)
    return samples_of


def _health(
    index: int, lines: Sequence[dict[str, Any]], samples: Sequence[dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """A device's health `before` and `after` the run, with the best state of its PCIe link in the samples."""
    health = {}
    for line in lines:
        if line["kind"] != "health":
            continue
        for device in line["devices"]:
            if device["index"] == index:
                health[line["when"]] = dict(device)
    for name in ("pcie_generation", "pcie_width"):
        values = [sample[name] for sample in samples if name in sample]
        if values and "after" in health:
            health["after"][name + "_loaded"] = max(values)
    return health


def _energy(
    samples: Sequence[energy.Sample], span: energy.Times, window: Sequence[energy.Stretch], max_gap: float
) -> dict[str, Any]:
    """The energy of a device in the span and in the window. `max_gap`: seconds between samples without a gap."""
    values: dict[str, Any] = {}
    used = energy.by_counter(samples, span) or energy.by_power(samples, span, max_gap)
    if used is not None:
        joules, seconds = used
        values = {"energy_j": round(joules, 3), "energy_seconds": round(seconds, 3)}
    return _present(**values, window_energy=energy.of_window(samples, window, max_gap))


def _device(
    index: int, static: dict[str, Any], series: _Series, span: energy.Times, interval: float, run_pids: set[int]
) -> dict[str, Any]:
    """The values of a device in the span, and those of the start line, `static`."""
    inside_span = [device for t, device in series if _within(t, span)]

    def inside(key: str) -> list[float]:
        return [device[key] for device in inside_span if key in device]

    power = inside("power_w")
    clock = inside("sm_clock_mhz")
    busy_clock = []
    for device in inside_span:
        if "sm_clock_mhz" in device and "gpu_idle" not in device.get("throttle", ()):
            busy_clock.append(device["sm_clock_mhz"])
    foreign_processes = None
    if "processes" in static:
        foreign_processes = sum(process["pid"] not in run_pids for process in static["processes"])
    return _present(
        index=index,
        name=static.get("name"),
        power_mean_w=_mean(power),
        power_max_w=max(power, default=None),
        temperature_max_c=max(inside("temperature_c"), default=None),
        sm_clock_mean_mhz=_mean(clock),
        sm_clock_min_mhz=min(clock, default=None),
        sm_clock_busy_mhz=_mean(busy_clock),
        sm_clock_max_mhz=static.get("sm_clock_max_mhz"),
        power_limit_w=static.get("power_limit_w"),
        power_limit_default_w=static.get("power_limit_default_w"),
        util_mean=_mean(inside("util")),
        mem_used_max_bytes=max(inside("mem_used_bytes"), default=None),
        mem_used_before_bytes=static.get("mem_used_bytes"),
        foreign_processes=foreign_processes,
        throttle_seconds=_throttle_seconds([(t, device.get("throttle")) for t, device in series], span, interval),
    )


def _throttle_seconds(series: _Series, span: energy.Times, interval: float) -> dict[str, float] | None:
    """Seconds of the span in which each reason that lowers the clocks was active; None if reasons were never read.

    A sample represents the time until the next one; the last sample, and one before a gap, represent one interval.
    """
    seconds_of: dict[str, float] = {}
    measured = False
    following = [*(t for t, _ in series[1:]), math.inf]
    for (t, reasons), after in zip(series, following):
        if reasons is None:
            continue
        until = t + interval
        if 0 < after - t <= _GAP_INTERVALS * interval:
            until = after
        seconds = min(until, span[1]) - max(t, span[0])
        if seconds > 0:
            measured = True
            for reason in reasons:
                seconds_of[reason] = seconds_of.get(reason, 0.0) + seconds
    if not measured:
        return None
    return {reason: round(seconds_of[reason], 3) for reason in sorted(seconds_of)}


def _spacing(samples: Sequence[dict[str, Any]]) -> float | None:
    """Median seconds between samples; None for fewer than two."""
    times = [sample["t"] for sample in samples]
    if len(times) < 2:
        return None
    return median(after - before for before, after in pairs(times))


def _within(t: float, span: energy.Times) -> bool:
    return span[0] <= t <= span[1]


def _mean(values: Sequence[float]) -> float | None:
    if not values:
        return None
    return round(sum(values) / len(values), 4)


def _present(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
