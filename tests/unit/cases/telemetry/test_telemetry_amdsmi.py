"""The amd-smi monitor, by a stand-in tool that prints what AMD's own code would (amdsmi_cli/amdsmi_commands.py)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from flagbench_cases.telemetry.monitors import MonitorUnavailable, create
from flagbench_core import amd_smi
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

PRINTED = Path(__file__).parent / "amdsmi"
SERIALS = ["0x7E8F7E20764E2714", "0x6F1F0A2B3C4D5E6F"]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for amd-smi on PATH; what it prints is copied from beside it."""
    for path in PRINTED.glob("*.json"):
        (tmp_path / path.name).write_text(path.read_text())
    (tmp_path / "amd-smi").write_text('#!/bin/sh\nexec cat "%s/$1.json"\n' % tmp_path)
    (tmp_path / "amd-smi").chmod(0o755)
    monkeypatch.setenv("PATH", "%s:%s" % (tmp_path, os.environ["PATH"]))
    for variable in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


def opened(devices: Any = None) -> Any:
    monitor = create("amd-smi", devices)
    monitor.open()
    return monitor


def test_what_does_not_change_during_a_run(tool: Path) -> None:
    static = opened().static()
    assert (static["driver_version"], len(static["devices"])) == ("6.12.12", 2)
    assert static["devices"][1] == {
        "index": 1,
        "amdsmi_index": 1,
        "name": "AMD Instinct MI300X",
        "uuid": SERIALS[1],
        "architecture": "gfx942",
        "memory_total_bytes": 196592 * 2**20,
        "power_limit_w": 750,
        "sm_clock_max_mhz": 2100,
        "mem_clock_max_mhz": 1300,
        "mem_used_bytes": 2**30,
    }


def test_a_sample_has_the_units_of_every_monitor(tool: Path) -> None:
    reading = opened().sample()
    assert reading.errors == []
    assert reading.devices[0] == {
        "index": 0,
        "power_w": 612,
        "energy_mj": 1234567500.0,
        "temperature_c": 71,
        "sm_clock_mhz": 1935,
        "mem_clock_mhz": 1300,
        "util": 0.97,
        "mem_used_bytes": 2**30,
    }


@pytest.mark.parametrize(("variable", "shown"), [("HIP_VISIBLE_DEVICES", [1]), ("ROCR_VISIBLE_DEVICES", [1])])
def test_only_visible_devices_are_read(
    tool: Path, monkeypatch: pytest.MonkeyPatch, variable: str, shown: list[int]
) -> None:
    monkeypatch.setenv(variable, "1")
    monitor = opened([0])
    assert [device["amdsmi_index"] for device in monitor.static()["devices"]] == shown
    assert [device["power_w"] for device in monitor.sample().devices] == [512]


@pytest.mark.parametrize("printed", ["", "not JSON", "[]", "{}", '[{"gpu": "0"}]', '{"gpu_data": 7}', "[7]", "null"])
def test_other_text_has_no_device(tool: Path, printed: str) -> None:
    (tool / "static.json").write_text(printed)
    assert amd_smi.parse(printed) == []
    with refuses(MonitorUnavailable):
        opened()


@pytest.mark.parametrize("before", ["WARNING: user is missing the groups render, video\n", "[1] busy\n{no JSON}\n\n"])
def test_what_is_printed_before_the_json_is_skipped(tool: Path, before: str) -> None:
    for name in ("static.json", "metric.json"):
        (tool / name).write_text(before + (tool / name).read_text())
    assert [device["power_w"] for device in opened().sample().devices] == [612, 512]


def test_what_the_tool_says_instead_of_devices_is_kept(tool: Path) -> None:
    (tool / "static.json").write_text("\nUnable to open /dev/kfd: Permission denied\nsecond line\n")
    with refuses(MonitorUnavailable, "Permission denied"):
        opened()


def test_a_value_that_is_not_printed_is_absent(tool: Path) -> None:
    metric = json.loads((tool / "metric.json").read_text())
    del metric[1]
    metric[0].update(power="N/A", clock={"gfx_0": "N/A"}, energy={"total_energy_consumption": "N/A"})
    monitor = opened()
    (tool / "metric.json").write_text(json.dumps(metric))
    reading = monitor.sample()
    assert set(reading.devices[0]) == {"index", "temperature_c", "util", "mem_used_bytes"}
    assert [error["device"] for error in reading.errors] == [1]


def test_a_power_limit_is_also_read_as_later_releases_print_it() -> None:
    printed = '[{"gpu": 0, "limit": {"ppt0": {"socket_power_limit": {"value": 750, "unit": "W"}}, "ppt1": "N/A"}}]'
    assert amd_smi.parse(printed) == [{"index": 0, "power_limit_w": 750}]
