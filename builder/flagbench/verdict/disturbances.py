"""What disturbed a run, according to its record: a qualifier of the verdict, never a reason against one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flagbench.records.model import Record

LEAST_SECONDS = 1.0
"""The sampling interval: a shorter time is within one sample."""

LEAST_OUTSIDE = 0.05
"""A share of the time; less may be the loader of a short window."""

MUCH_MEMORY = 2**30
"""Bytes in use before the run; a driver alone uses less on an idle device."""

NO_THROTTLING = frozenset({"gpu_idle", "applications_clocks_setting", "display_clock_setting", "sync_boost"})
"""NVML's reasons for a lower clock that are not throttling: the clock was set, or the device was idle."""


def outside_of_steps(records: Sequence[Record], baseline: Sequence[Record]) -> Iterator[str]:
    """That more or less of a window's time passed outside of its device's steps than on the other side, if it did."""
    here, there = (_outside(side) for side in (records, baseline))
    if here is not None and there is not None and abs(here - there) > LEAST_OUTSIDE:
        yield f"{here:.0%} of the time outside of the device's steps, the baseline {there:.0%}"


def _outside(records: Sequence[Record]) -> float | None:
    """The share of the windows' time that the device's steps do not account for; None where it is not known."""
    windows = [record.window for record in records if record.window is not None]
    total = sum(window.host_seconds or 0.0 for window in windows)
    known = all(window.host_seconds for window in windows) and total > 0
    return 1 - sum(window.seconds for window in windows) / total if known else None


def disturbances(records: Sequence[Record]) -> Iterator[str]:
    """What disturbed one or more runs, the worst of each kind; what was not measured counts as undisturbed.

    A window with at most 2 % of drift is steady, as its record says. Any second of throttling counts, and so does any
    process of another user on a device.
    """
    drifts = [r.window.drift or 0.0 for r in records if r.window is not None and r.window.steady is False]
    if drifts:
        worst = max(drifts, key=abs)
        yield "window not steady" + (f" (drift {100 * worst:+.1f} %)" if worst else "")
    devices = [device for r in records if r.telemetry is not None for device in r.telemetry.devices]
    longest: dict[str, float] = {}
    for device in devices:
        for reason, seconds in device.throttle_seconds.items():
            longest[reason] = max(seconds, longest.get(reason, 0.0))
    for reason, seconds in longest.items():
        if seconds >= LEAST_SECONDS and reason not in NO_THROTTLING:
            yield f"throttled {seconds:.0f} s ({reason})"
    if any(d.foreign_processes or d.mem_used_before_bytes > MUCH_MEMORY for d in devices):
        yield "another tenant on the device"
    if moved := max((r.system.clock_set_seconds or 0.0 for r in records), key=abs, default=0.0):
        yield f"the clock was set by {moved:+.0f} s during the run"
