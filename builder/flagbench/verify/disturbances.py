"""What disturbed a run by its own record: said beside a verdict, and no reason against one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flagbench.record.model import Record

LEAST_SECONDS = 1.0
"""A sampler looks once a second: less than this is the border of one look."""

MUCH_MEMORY = 2**30
"""Bytes in use before the run that no driver keeps for itself on an idle device."""

_NO_THROTTLING = frozenset({"gpu_idle", "applications_clocks_setting", "display_clock_setting", "sync_boost"})
"""Reasons of NVML for a clock below its highest that somebody set, or that nobody needed higher."""


def disturbances(records: Sequence[Record]) -> tuple[str, ...]:
    """What disturbed one or more runs, of each kind the worst; what was not measured disturbs nothing.

    A window is steady within 2 % of drift, which its record says; any second of throttling counts, and any process of
    somebody else on a device.
    """
    devices = [device for record in records for device in (record.raw["telemetry"] or {}).get("devices", ())]
    return (*_drift(records), *_throttling(devices), *_tenant(devices))


def _drift(records: Sequence[Record]) -> Iterator[str]:
    windows = [record.raw.get("window") or {} for record in records]
    unsteady = [window.get("drift") or 0.0 for window in windows if window.get("steady") is False]
    if unsteady:
        worst = max(unsteady, key=abs)
        yield "window not steady" + (f" (drift {100 * worst:+.1f} %)" if worst else "")


def _throttling(devices: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    longest: dict[str, float] = {}
    for device in devices:
        for reason, seconds in device.get("throttle_seconds", {}).items():
            longest[reason] = max(seconds, longest.get(reason, 0.0))
    for reason, seconds in longest.items():
        if seconds >= LEAST_SECONDS and reason not in _NO_THROTTLING:
            yield f"throttled {seconds:.0f} s ({reason})"


def _tenant(devices: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if any(d.get("foreign_processes", 0) or d.get("mem_used_before_bytes", 0) > MUCH_MEMORY for d in devices):
        yield "another tenant on the device"
