"""Summarises the file of a run's sampler into the record's `telemetry`: means, maxima, energy, throttle reasons.

The file has a start line with facts about the devices, and then lines of samples, errors and readings of health; see
sampler.py and monitors/__init__.py for their keys.
"""

from __future__ import annotations

import math
from statistics import median
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from flagbench_cases.telemetry import energy
from flagbench_cases.telemetry.energy import pairs
from flagbench_cases.telemetry.jsonlines import read_lines

_GAP_INTERVALS = 3.0
"""Two samples that are further apart than this many intervals have a gap between them, for which nothing is computed.

A single late or missing sample does not make a gap.
"""
_STALLED_INTERVALS = 5.0
"""If the samples end earlier than this many intervals before the span does, the monitor stopped answering.

A single slow sample takes less.
"""
_MAX_REASONS = 8
"""The most reasons of errors that a summary lists."""

_Line = Dict[str, Any]
"""A line of the file, parsed."""
_Series = List[Tuple[float, Any]]
"""Values of one device, each with the time of its sample, Unix seconds."""
_Stretches = Mapping[int, Sequence[energy.Stretch]]
"""The stretches of the window (the steps that p_core is computed from), by the index of the device."""


class _DeviceSamples(NamedTuple):
    """The samples of one device."""

    series: _Series
    """All values of each sample."""
    powers: list[energy.Sample]
    """The power and the energy counter of each sample."""


def summarise(path: str, span: energy.Times | None = None, window: _Stretches | None = None) -> dict[str, Any] | None:
    """The record's `telemetry` from the sampler's file at `path`; None if there is no file.

    The keys are `samples` (their number), `interval_s` (median), `cpu`, `devices`, `errors` (their number),
    `problems` (of the whole file), and `unavailable` if the devices could not be monitored. Power is in W, `energy_j`
    in J over the `energy_seconds` of the span that samples cover, temperatures in degrees Celsius, clocks in MHz,
    memory in bytes, utilisation a fraction. Values that were not measured are absent. The file may be empty or end
    with an incomplete line.

    Args:
        span: the time to summarise, Unix seconds, both ends included; None for the whole file.
        window: when each device took the steps of the window, for `window_energy`.
    """
    try:
        start, lines = _read(path)
    except FileNotFoundError:
        return None
    span = span or (-math.inf, math.inf)
    samples = _samples(lines)
    inside = [sample for sample in samples if _is_within(sample["t"], span)]
    summary: dict[str, Any] = {
        "samples": len(inside),
        "cpu": _summarise_cpu([sample.get("cpu", {}) for sample in inside]),
        "devices": _summarise_devices(start, lines, span, window or {}),
        "errors": _count_errors(lines, span),
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


def _samples(lines: Sequence[_Line]) -> list[_Line]:
    """The lines that are samples, in order."""
    return [line for line in lines if line["kind"] == "sample"]


def _count_errors(lines: Sequence[_Line], span: energy.Times) -> int:
    """The number of errors in a span."""
    return sum(line["kind"] == "error" and _is_within(line["t"], span) for line in lines)


def _problems(start: _Line, lines: Sequence[_Line], span: energy.Times) -> list[str]:
    """The problems of monitoring: that samples end before the span does, and the reasons of errors, each once."""
    samples = _samples(lines)
    begin, end = span
    last_sample = max([begin, *(sample["t"] for sample in samples)])
    seconds_without = end - last_sample
    problems = []
    stalled_seconds = _STALLED_INTERVALS * _interval(start, samples)
    # The whole file as a span has no end (infinity), so no sample is missing after the last one.
    if math.isfinite(seconds_without) and seconds_without > stalled_seconds:
        problems.append(f"no sample in the last {seconds_without:.0f} s: the monitor stopped answering")
    reasons = set()
    for line in lines:
        if line["kind"] != "error":
            continue
        reason = str(line.get("reason"))
        if "device" in line:
            reason = f"device {line['device']}: {reason}"
        reasons.add(reason)
    return problems + sorted(reasons)[:_MAX_REASONS]


def _interval(start: _Line, samples: Sequence[_Line]) -> float:
    """The seconds between two samples: the requested interval, or the measured one if that is longer."""
    return max(start.get("interval_s", 1.0), _spacing(samples) or 0.0)


def read_start(path: str) -> dict[str, Any] | None:
    """The start line of a sampler's file; None if the file does not exist or has no start line.

    It has the driver, and of each device its name, limits, and the processes that used it before the run.
    """
    try:
        return _read(path)[0] or None
    except FileNotFoundError:
        return None


def _read(path: str) -> tuple[_Line, list[_Line]]:
    """The start line ({} if it is missing), and the lines of samples, errors and health. Raises FileNotFoundError."""
    start: _Line = {}
    lines: list[_Line] = []
    for line in read_lines(path):
        kind = line.get("kind")
        if kind == "start":
            start = line
        elif kind in ("sample", "error", "health") and isinstance(line.get("t"), (int, float)):
            lines.append(line)
    return start, lines


def _summarise_cpu(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The summary of the processors and the memory of the node. `samples`: the `cpu` of each sample."""
    return _present(
        util_mean=_mean(_values(samples, "util")),
        others_mean=_mean(_values(samples, "others")),
        steal_mean=_mean(_values(samples, "steal")),
        quota=min(_values(samples, "quota"), default=None),
        throttled=_quota_used_up(_values(samples, "throttled")),
        mem_used_max_bytes=max(_values(samples, "mem_used_bytes"), default=None),
        rss_max_bytes=max(_values(samples, "rss_bytes"), default=None),
    )


def _values(samples: Sequence[Mapping[str, Any]], key: str) -> list[Any]:
    """The values under `key` of the samples that have it."""
    return [sample[key] for sample in samples if key in sample]


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


def _summarise_devices(
    start: _Line, lines: Sequence[_Line], span: energy.Times, window: _Stretches
) -> list[dict[str, Any]]:
    """The summary of each device, in the order of their indices."""
    samples = _samples(lines)
    samples_of = _samples_by_device(samples)
    static = {device["index"]: device for device in start.get("devices", [])}
    interval = _interval(start, samples)
    max_gap = _GAP_INTERVALS * interval
    run_pids = set(start.get("run_pids", []))
    devices = []
    for index in sorted(set(static) | set(samples_of)):
        device_samples = samples_of.get(index, _DeviceSamples([], []))
        series = device_samples.series
        device = _summarise_device(index, static.get(index, {}), series, span, interval, run_pids)
        samples_in_span = [values for t, values in series if _is_within(t, span)]
        health = _health(index, lines, samples_in_span)
        if health:
            device["health"] = health
        device.update(_energy(device_samples.powers, span, window.get(index, ()), max_gap))
        devices.append(device)
    return devices


def _samples_by_device(samples: Sequence[_Line]) -> dict[int, _DeviceSamples]:
    """The samples of each device by its index. A line of the file has one sample of every device."""
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


def _health(index: int, lines: Sequence[_Line], samples: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """A device's health `before` and `after` the run; the latter with the best PCIe link seen in its samples."""
    health = {}
    for line in lines:
        if line["kind"] != "health":
            continue
        for device in line["devices"]:
            if device["index"] == index:
                health[line["when"]] = dict(device)
    for name in ("pcie_generation", "pcie_width"):
        values = _values(samples, name)
        if values and "after" in health:
            health["after"][name + "_loaded"] = max(values)
    return health


def _energy(
    samples: Sequence[energy.Sample], span: energy.Times, window: Sequence[energy.Stretch], max_gap: float
) -> dict[str, Any]:
    """The energy of a device in the span and in the window.

    `max_gap`: the most seconds between two samples between which power is integrated.
    """
    values: dict[str, Any] = {}
    used = energy.count_energy(samples, span) or energy.integrate_power(samples, span, max_gap)
    if used is not None:
        values = {"energy_j": round(used.joules, 3), "energy_seconds": round(used.seconds, 3)}
    return _present(**values, window_energy=energy.window_energy(samples, window, max_gap))


def _summarise_device(
    index: int, static: dict[str, Any], series: _Series, span: energy.Times, interval: float, run_pids: set[int]
) -> dict[str, Any]:
    """The summary of one device, without its health and energy.

    `static`: the device in the start line; `run_pids`: the processes of the run itself.
    """
    inside_span = [device for t, device in series if _is_within(t, span)]
    powers = _values(inside_span, "power_w")
    clocks = _values(inside_span, "sm_clock_mhz")
    busy_clocks = []
    for device in inside_span:
        if "sm_clock_mhz" in device and "gpu_idle" not in device.get("throttle", ()):
            busy_clocks.append(device["sm_clock_mhz"])
    throttle_series = [(t, device.get("throttle")) for t, device in series]
    foreign_processes = None
    if "processes" in static:
        foreign_processes = sum(process["pid"] not in run_pids for process in static["processes"])
    return _present(
        index=index,
        name=static.get("name"),
        power_mean_w=_mean(powers),
        power_max_w=max(powers, default=None),
        temperature_max_c=max(_values(inside_span, "temperature_c"), default=None),
        sm_clock_mean_mhz=_mean(clocks),
        sm_clock_min_mhz=min(clocks, default=None),
        sm_clock_busy_mhz=_mean(busy_clocks),
        sm_clock_max_mhz=static.get("sm_clock_max_mhz"),
        power_limit_w=static.get("power_limit_w"),
        power_limit_default_w=static.get("power_limit_default_w"),
        util_mean=_mean(_values(inside_span, "util")),
        mem_used_max_bytes=max(_values(inside_span, "mem_used_bytes"), default=None),
        mem_used_before_bytes=static.get("mem_used_bytes"),
        foreign_processes=foreign_processes,
        throttle_seconds=_throttle_seconds(throttle_series, span, interval),
    )


def _throttle_seconds(series: _Series, span: energy.Times, interval: float) -> dict[str, float] | None:
    """Seconds of the span in which each reason that lowers the clocks was active; None if reasons were never read.

    `series`: the active reasons of each sample; None in a sample without them. A sample represents the time until the
    next one; the last sample, and one before a gap, represent one interval.
    """
    seconds_of: dict[str, float] = {}
    has_reasons = False
    begin, end = span
    next_times = [*(t for t, _ in series[1:]), math.inf]  # no sample follows the last one
    for (t, reasons), next_time in zip(series, next_times):
        if reasons is None:
            continue
        until = t + interval
        if 0 < next_time - t <= _GAP_INTERVALS * interval:
            until = next_time
        seconds = min(until, end) - max(t, begin)
        if seconds > 0:
            has_reasons = True
            for reason in reasons:
                seconds_of[reason] = seconds_of.get(reason, 0.0) + seconds
    if not has_reasons:
        return None
    return {reason: round(seconds_of[reason], 3) for reason in sorted(seconds_of)}


def _spacing(samples: Sequence[dict[str, Any]]) -> float | None:
    """The median number of seconds between samples; None for fewer than two samples."""
    times = [sample["t"] for sample in samples]
    if len(times) < 2:
        return None
    return median(after - before for before, after in pairs(times))


def _is_within(t: float, span: energy.Times) -> bool:
    """Whether a time is in a span, both ends included."""
    begin, end = span
    return begin <= t <= end


def _mean(values: Sequence[float]) -> float | None:
    """The mean in four decimals; None for no values."""
    if not values:
        return None
    return round(sum(values) / len(values), 4)


def _present(**values: Any) -> dict[str, Any]:
    """The values that are not None."""
    return {key: value for key, value in values.items() if value is not None}
