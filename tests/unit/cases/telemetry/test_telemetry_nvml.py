"""The NVML monitor against a stand-in driver: today's, R470's, and one whose device falls off the bus."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flagbench_cases.telemetry.monitors import MonitorUnavailable, nvml
from flagbench_cases.telemetry.monitors.nvml import kernel_driver, throttle_reasons
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

MIB = 1 << 20

SCRIPT = """
import json, sys
from flagbench_cases.telemetry.monitors import MonitorUnavailable
from flagbench_cases.telemetry.monitors.nvml import create
monitor = create(json.loads(sys.argv[1]))
try:
    monitor.open()
    print(json.dumps([monitor.static()] + [list(monitor.sample()) for _ in range(int(sys.argv[2]))]))
except MonitorUnavailable as error:
    print(json.dumps(str(error)))
monitor.close()
"""


class Monitored:
    """What a monitor gave in a process of its own: the reason why nothing, or static data and readings."""

    def __init__(self, env: dict[str, str], devices: Any = None, samples: int = 2, **more: str) -> None:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, json.dumps(devices), str(samples)],
            env={**env, **more},
            capture_output=True,
            check=True,
        )
        answer = json.loads(done.stdout.decode())
        self.log = done.stderr.decode()
        self.unavailable = answer if isinstance(answer, str) else None
        self.static: dict[str, Any] = {} if self.unavailable else answer[0]
        self.readings: list[Any] = [] if self.unavailable else answer[1:]


def test_a_current_driver(nvml_stub: Callable) -> None:
    monitored = Monitored(nvml_stub(), NVML_STUB_THROTTLE="0x0,0x44")
    assert monitored.static["driver_version"] == "580.65.06"
    assert monitored.static["devices"][1] == {
        "index": 1,
        "nvml_index": 1,
        "name": "NVIDIA A100-SXM4-40GB",
        "uuid": "GPU-22222222-0000-0000-0000-000000000000",
        "memory_total_bytes": 40960 * MIB,
        "power_limit_w": 300.0,
        "power_limit_default_w": 400.0,
        "sm_clock_max_mhz": 1410,
        "mem_clock_max_mhz": 1215,
        "mig": False,
        "ecc": True,
        "persistence": True,
        "mem_used_bytes": 512 * MIB,
        "processes": [{"pid": 4242, "mem_used_bytes": 512 * MIB}],
    }
    assert monitored.static["devices"][0]["processes"] == []
    (first, second), errors = monitored.readings[1]
    assert errors == []
    assert first == {
        "index": 0,
        "power_w": 110.0,
        "energy_mj": 300000,
        "temperature_c": 40,
        "sm_clock_mhz": 1395,
        "mem_clock_mhz": 1215,
        "util": 0.87,
        "mem_used_bytes": 512 * MIB,
        "throttle": ["sw_power_cap", "hw_thermal_slowdown"],
        "pcie_generation": 4,
        "pcie_width": 16,
    }
    assert second["power_w"] == 210.0
    assert monitored.readings[0][0][0]["throttle"] == []


def test_driver_r470_answers_by_its_older_calls(nvml_stub: Callable) -> None:
    monitored = Monitored(nvml_stub("R470"), NVML_STUB_THROTTLE="0x4")
    assert monitored.static["driver_version"] == "470.129.06"
    assert monitored.static["devices"][1]["processes"] == [{"pid": 4242, "mem_used_bytes": 512 * MIB}]
    device = monitored.readings[1][0][0]
    assert device["mem_used_bytes"] == 600 * MIB
    assert device["throttle"] == ["sw_power_cap"]


def test_a_value_that_a_device_refuses_is_absent(nvml_stub: Callable) -> None:
    monitored = Monitored(nvml_stub(), samples=3)
    assert all("util" not in devices[1] for devices, _ in monitored.readings)
    assert all(errors == [] for _, errors in monitored.readings)
    assert monitored.log.count("utilisation of device 1 asked") == 1


def test_a_lost_device_is_an_error_each_time_until_it_is_back(nvml_stub: Callable) -> None:
    monitored = Monitored(nvml_stub("LOST_AFTER=1"), samples=5)
    indices = [[device["index"] for device in devices] for devices, _ in monitored.readings]
    lost = [{"device": 1, "reason": "power_w: GPU is lost"}]
    assert indices == [[0, 1], [0], [0], [0], [0, 1]]
    assert [errors for _, errors in monitored.readings] == [[], lost, lost, lost, []]


def test_an_unknown_error_is_told_and_ends_no_field(nvml_stub: Callable) -> None:
    readings = Monitored(nvml_stub(), samples=4, NVML_STUB_UNKNOWN_AFTER="1").readings
    unknown = [{"device": 0, "reason": "power_w: Unknown Error"}]
    assert [errors for _, errors in readings] == [[], unknown, unknown, unknown]
    assert "power_w" not in readings[3][0][0]
    assert readings[3][0][0]["temperature_c"] == 40


def test_a_part_of_a_device_has_no_power_of_its_board(nvml_stub: Callable) -> None:
    monitored = Monitored(nvml_stub(), NVML_STUB_MIG="1")
    board = {"power_w", "energy_mj", "power_limit_w", "mem_used_bytes", "processes"}
    seen = [{**static, **sampled} for static, sampled in zip(monitored.static["devices"], monitored.readings[0][0])]
    assert (board & set(seen[0]), board - set(seen[1])) == (set(), set())
    assert (seen[0]["mig"], seen[0]["sm_clock_mhz"]) == (True, 1410)


@pytest.mark.parametrize("visible", ["1,0", "GPU-22222222-0000-0000-0000-000000000000,GPU-1"])
def test_the_runs_numbering_follows_the_visible_devices(nvml_stub: Callable, visible: str) -> None:
    devices = Monitored(nvml_stub(), CUDA_VISIBLE_DEVICES=visible).static["devices"]
    assert [(device["index"], device["nvml_index"]) for device in devices] == [(0, 1), (1, 0)]


@pytest.mark.parametrize(
    ("devices", "more", "reason"),
    [
        (None, {"NVML_STUB_NO_DRIVER": "1"}, "NVML: Driver Not Loaded"),
        ([0, 2], {}, "device 2 is not among the 2 that are visible"),
        (None, {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES= selects none of 2 devices"),
    ],
)
def test_an_unavailable_monitor_says_why(
    nvml_stub: Callable, devices: Any, more: dict[str, str], reason: str
) -> None:
    assert Monitored(nvml_stub(), devices, **more).unavailable == reason


def test_a_node_of_several_models(nvml_stub: Callable) -> None:
    mixed = {"NVML_STUB_NAME_1": "NVIDIA T1000"}
    refused = Monitored(nvml_stub(), **mixed)
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in refused.unavailable
    assert Monitored(nvml_stub(), CUDA_DEVICE_ORDER="PCI_BUS_ID", **mixed).unavailable is None
    assert Monitored(nvml_stub(), CUDA_VISIBLE_DEVICES="GPU-2", **mixed).unavailable is None


def test_every_known_reason_has_its_name() -> None:
    names = throttle_reasons(0x1FF)
    assert len(set(names)) == 9
    assert throttle_reasons(0) == []
    assert throttle_reasons(0x10004) == ["sw_power_cap", "reason_0x10000"]


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  515.65.01  Wed Jul 20 14:00:58 UTC 2022", "515.65.01"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build", "570.86.15"),
        ("NVRM version: something else", None),
    ],
)
def test_the_kernel_says_its_driver_where_the_library_does_not(line: str, version: Any, tmp_path: Path) -> None:
    (tmp_path / "version").write_text(line + "\nGCC version:  gcc version 11.4.0\n")
    assert kernel_driver(str(tmp_path / "version")) == version


def test_a_driver_is_known_even_where_its_devices_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "pynvml", None)
    monkeypatch.setattr(nvml, "kernel_driver", lambda: "570.86.15")
    with refuses(MonitorUnavailable, "nvidia-ml-py") as caught:
        nvml.create().open()
    assert caught.value.facts == {"driver_version": "570.86.15"}
