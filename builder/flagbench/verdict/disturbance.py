"""Find what disturbed a run in the telemetry of its record: other users of its processors and devices, throttling.

The rules of a verdict, the causes of a slow run and the checks of an acceptance use these functions, with the limits
of `machine.disturbance_limits`.
"""

from __future__ import annotations

from collections.abc import Sequence

from flagbench.machine.disturbance_limits import (
    MEMORY_BEFORE,
    NOT_THROTTLED,
    OTHER_PROCESSORS,
    POWER_CAP,
    SAMPLE_SECONDS,
    STOLEN,
    is_capped,
)
from flagbench.records.model import CpuTelemetry, DeviceTelemetry


def describe_others_on_processors(cpu: CpuTelemetry) -> list[str]:
    """Return a clause for each other use of the processors during the run; empty if there was none."""
    clauses = []
    if cpu.others_mean is not None and cpu.others_mean >= OTHER_PROCESSORS:
        clauses.append(f"{cpu.others_mean:.1f} processors busy with other processes")
    if cpu.steal_mean is not None and cpu.steal_mean >= STOLEN:
        clauses.append(f"{cpu.steal_mean:.0%} taken by other virtual machines")
    return clauses


def describe_others_on_devices(devices: Sequence[DeviceTelemetry]) -> list[str]:
    """Return a clause for each other use of the devices before or during the run; empty if there was none."""
    clauses = []
    processes = sum(device.foreign_processes for device in devices)
    if processes:
        clauses.append(f"{processes} other processes on the devices")
    memory = max((device.mem_used_before_bytes for device in devices), default=0)
    if memory > MEMORY_BEFORE:
        clauses.append(f"{memory / 2**30:.1f} GiB of a device in use before the run")
    return clauses


def find_throttling(devices: Sequence[DeviceTelemetry], *, at_own_limit: bool = False) -> dict[str, float]:
    """Return the seconds for which each reason throttled a device; the longest if there are several devices.

    Args:
        devices: the telemetry of the devices.
        at_own_limit: whether throttling by the power limit counts if that limit is the device's default. A device
            under load normally reaches it.
    """
    longest: dict[str, float] = {}
    for device in devices:
        capped = is_capped(device.power_limit_w, device.power_limit_default_w)
        for reason, seconds in device.throttle_seconds.items():
            if reason in NOT_THROTTLED or seconds < SAMPLE_SECONDS:
                continue
            if reason == POWER_CAP and not capped and not at_own_limit:
                continue
            longest[reason] = max(float(seconds), longest.get(reason, 0.0))
    return longest
