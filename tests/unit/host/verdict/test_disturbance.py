"""What disturbed a run, by the telemetry of its record: each limit of `machine.limits`, from both sides."""

from __future__ import annotations

from typing import Any

import pytest

from flagbench.machine.disturbance_limits import MEMORY_BEFORE, OTHER_PROCESSORS, SAMPLE_SECONDS, STOLEN
from flagbench.records.model import CpuTelemetry, DeviceTelemetry
from flagbench.verdict.disturbance import describe_others_on_devices, describe_others_on_processors, find_throttling

AT_ITS_LIMIT: dict[str, Any] = {"throttle_seconds": {"sw_power_cap": 90.0}, "power_limit_default_w": 400.0}


@pytest.mark.parametrize(
    ("cpu", "found"),
    [
        (CpuTelemetry(), 0),
        (CpuTelemetry(others_mean=OTHER_PROCESSORS - 0.01, steal_mean=STOLEN - 0.001), 0),
        (CpuTelemetry(others_mean=OTHER_PROCESSORS), 1),
        (CpuTelemetry(steal_mean=STOLEN), 1),
        (CpuTelemetry(others_mean=2.0, steal_mean=0.5), 2),
    ],
)
def test_others_on_processors(cpu: CpuTelemetry, found: int) -> None:
    assert len(describe_others_on_processors(cpu)) == found


@pytest.mark.parametrize(
    ("device", "found"),
    [
        (DeviceTelemetry(), 0),
        (DeviceTelemetry(mem_used_before_bytes=MEMORY_BEFORE), 0),
        (DeviceTelemetry(mem_used_before_bytes=MEMORY_BEFORE + 1), 1),
        (DeviceTelemetry(foreign_processes=1, mem_used_before_bytes=2 * MEMORY_BEFORE), 2),
    ],
)
def test_others_on_devices(device: DeviceTelemetry, found: int) -> None:
    assert len(describe_others_on_devices([DeviceTelemetry(), device])) == found


@pytest.mark.parametrize(
    ("device", "reasons"),
    [
        ({"throttle_seconds": {"hw_thermal_slowdown": SAMPLE_SECONDS}}, {"hw_thermal_slowdown"}),
        ({"throttle_seconds": {"hw_thermal_slowdown": SAMPLE_SECONDS / 2}}, set()),
        ({"throttle_seconds": {"gpu_idle": 90.0, "applications_clocks_setting": 90.0}}, set()),
        ({**AT_ITS_LIMIT, "power_limit_w": 400.0}, set()),
        ({**AT_ITS_LIMIT, "power_limit_w": 399.0}, {"sw_power_cap"}),
    ],
)
def test_throttling(device: dict[str, Any], reasons: set[str]) -> None:
    assert find_throttling([DeviceTelemetry(**device)]).keys() == reasons


def test_the_own_power_limit_on_request() -> None:
    capped = DeviceTelemetry(**AT_ITS_LIMIT, power_limit_w=400.0)
    shorter = DeviceTelemetry(throttle_seconds={"sw_power_cap": 3.0})
    assert find_throttling([capped, shorter], at_own_limit=True) == {"sw_power_cap": 90.0}
