"""Reading health by NVML, against a stand-in: values, refusals, faults on one of two devices, and what hangs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from flagbench_core.health.judge import HealthOutcome, judge_health
from flagbench_core.health.reading import (
    ECC_OFF,
    NO_CALL,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    PARTITIONED,
    READ,
    DeviceHealth,
    device_health,
)
from nvml_stubs import UUIDS

pytest.importorskip("pynvml", reason="NVML is read with it")
pytestmark = pytest.mark.image

SECONDS = 30.0
SCRIPT = """
import json, sys
from flagbench_core.health.read import read_health
uuids, seconds = json.loads(sys.argv[1])
print(json.dumps(read_health("nvml", uuids, seconds).to_dict()))
"""


class Read:
    """A reading in a process of its own."""

    def __init__(self, env: dict[str, str], uuids: Any = None, seconds: float = SECONDS, **planted: str) -> None:
        variables = {f"NVML_STUB_{name}": value for name, value in planted.items()}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, json.dumps([uuids, seconds])],
            env={**env, **variables},
            stdout=subprocess.PIPE,
            check=True,
        )
        values = json.loads(done.stdout.decode())
        self.devices: list[DeviceHealth] = [device_health(device) for device in values["devices"]]
        self.source = values.get("source")
        self.problem = values.get("problem")


def test_a_current_driver(nvml_stub: Callable) -> None:
    reading = Read(nvml_stub())
    assert (reading.source, reading.problem) == ("nvml", None)
    assert [device.uuid for device in reading.devices] == UUIDS
    device = reading.devices[1]
    assert (device.index, device.pci_address) == (1, "0000:b0:00.0")
    assert (device.ecc_enabled, device.mig_enabled, device.recovery_action) == (True, False, 0)
    assert (device.row_remap_pending, device.row_remap_failed) == (False, False)
    assert (device.pcie_generation, device.pcie_width, device.pcie_generation_max, device.pcie_width_max) == (
        (4, 16) * 2
    )
    assert (device.nvlinks_up, device.nvlinks_down) == (tuple(range(12)), ())
    assert (device.fabric_state, device.fabric_status, device.fabric_health) == (3, 0, 1)
    assert [name for name in READ if getattr(device, name) is None] == []
    assert device.refusals == {}


def test_driver_r470_lacks_the_newer_calls(nvml_stub: Callable) -> None:
    device = Read(nvml_stub("R470"), VIOLATION_0="5").devices[0]
    assert {name for name in READ if getattr(device, name) is None} == set(device.refusals)
    assert device.refusals == {
        **dict.fromkeys(("fabric_state", "fabric_status", "fabric_health"), NO_CALL),
        **dict.fromkeys(("recovery_action", "nvlink_recoveries_failed"), NOT_SUPPORTED),
        **dict.fromkeys(("slowed_sw_thermal_ns", "slowed_hw_thermal_ns", "slowed_power_brake_ns"), NOT_SUPPORTED),
    }
    assert device.slowed_thermal_ns == 5


def test_an_older_structure_has_no_summary(nvml_stub: Callable) -> None:
    device = Read(nvml_stub(), FABRIC_VERSION="2").devices[0]
    assert (device.fabric_state, device.fabric_status, device.fabric_health) == (3, 0, None)


@pytest.mark.parametrize(
    ("planted", "field", "refusal"),
    [
        ({"ECC_UNCORRECTED_1": "NOT_SUPPORTED"}, "ecc_uncorrected", NOT_SUPPORTED),
        ({"REMAP_FAILED_1": "NO_PERMISSION"}, "row_remap_failed", NO_PERMISSION),
        ({"FIELD_230_1": "NOT_SUPPORTED"}, "recovery_action", NOT_SUPPORTED),
        ({"FIELD_270_1": "INVALID_ARGUMENT"}, "slowed_hw_thermal_ns", "invalid argument"),
        ({"PCIE_WIDTH_MAX_1": "UNKNOWN"}, "pcie_width_max", "unknown error"),
        ({"LINKS_1": "NOT_SUPPORTED"}, "nvlinks_up", NOT_SUPPORTED),
        ({"LINK_ERROR_3_1": "NOT_SUPPORTED"}, "nvlink_crc_errors", NOT_SUPPORTED),
        ({"ECC_MODE_1": "0"}, "row_remap_failed", ECC_OFF),
        ({"FABRIC_STATE_1": "NOT_SUPPORTED"}, "fabric_state", NOT_SUPPORTED),
    ],
)
def test_a_refusal_has_its_name(nvml_stub: Callable, planted: dict[str, str], field: str, refusal: str) -> None:
    first, second = Read(nvml_stub(), **planted).devices
    assert (getattr(second, field), second.refusals[field]) == (None, refusal)
    assert (second.unanswered, first.refusals) == (None, {})


FAULTS = {
    "ECC_UNCORRECTED": ("8", "ecc-uncorrected"),
    "ECC_CORRECTED": ("8", "ecc-corrected"),
    "REMAP_PENDING": ("1", "row-remap-pending"),
    "REMAP_FAILED": ("1", "row-remap-failed"),
    "FIELD_230": ("4", "recovery-action-4"),
    "LINKS": ("11", "nvlink-down"),
    "LINK_ERROR_0": ("3", "nvlink-replays"),
    "LINK_ERROR_1": ("3", "nvlink-replays"),
    "LINK_ERROR_2": ("300000000", "nvlink-crc"),
    "LINK_ERROR_3": ("3", "nvlink-crc"),
    "FIELD_214": ("1", "nvlink-recovery-failed"),
    "PCIE_REPLAYS": ("3", "pcie-replays"),
    "FIELD_269": ("2000000000", "slowed-by-heat"),
    "FIELD_270": ("2000000000", "slowed-by-heat"),
    "FIELD_271": ("2000000000", "slowed-by-power-brake"),
    "FIELD_74": ("2000000000", "slowed-by-power-limit"),
    "VIOLATION": ("2000000000", "slowed-by-heat"),
    "FABRIC_STATE": ("2", "fabric-unhealthy"),
    "FABRIC_STATUS": ("9", "fabric-unhealthy"),
    "FABRIC_HEALTH": ("2", "fabric-unhealthy"),
    "HANDLE": ("GPU_IS_LOST", "gpu-lost"),
    "ECC_MODE": ("RESET_REQUIRED", "reset-required"),
    "REMAP_CORRECTED": ("NO_PERMISSION", "row-remap-not-known"),
}


@pytest.fixture(scope="module")
def sound(nvml_stub: Callable) -> list[DeviceHealth]:
    """Both devices without a fault."""
    return Read(nvml_stub(), UUIDS).devices


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_one_of_two_devices(nvml_stub: Callable, sound: list[DeviceHealth], name: str) -> None:
    value, kind = FAULTS[name]
    after = Read(nvml_stub(), UUIDS, **{f"{name}_1": value}).devices
    found = judge_health(sound, after)
    assert [(finding.kind, finding.uuid, finding.index) for finding in found] == [(kind, UUIDS[1], 1)]


def test_the_devices_of_a_run_in_its_order(nvml_stub: Callable) -> None:
    reading = Read(nvml_stub(), [UUIDS[1], "MIG-3", "GPU-4"], ECC_CORRECTED_1="5")
    assert [device.index for device in reading.devices] == [0, 1, 2]
    assert (reading.devices[0].uuid, reading.devices[0].ecc_corrected) == (UUIDS[1], 5)
    assert set(reading.devices[1].refusals.values()) == {PARTITIONED}
    assert reading.devices[2].unanswered == NOT_FOUND


def test_a_device_with_parts_has_no_links_of_its_own(nvml_stub: Callable) -> None:
    device = Read(nvml_stub(), MIG="1").devices[0]
    assert (device.nvlinks_up, device.refusals["nvlinks_up"]) == (None, PARTITIONED)
    assert (device.ecc_uncorrected, device.ecc_uncorrected_aggregate) == (None, 0)


def test_a_device_that_hangs_does_not_hide_the_other(nvml_stub: Callable) -> None:
    first, second = Read(nvml_stub(), UUIDS, 2.0, ECC_UNCORRECTED_1="HANG").devices
    assert (first.unanswered, first.ecc_uncorrected) == (None, 0)
    assert (second.unanswered, second.uuid) == ("no answer in 2 s", UUIDS[1])
    found = judge_health([first, second], [first, second])
    assert [(finding.kind, finding.outcome) for finding in found] == [("no-answer", HealthOutcome.INCONCLUSIVE)]


def test_a_driver_that_hangs(nvml_stub: Callable) -> None:
    reading = Read(nvml_stub(), UUIDS, 1.0, INIT_MS="60000")
    assert [device.unanswered for device in reading.devices] == ["no answer in 1 s"] * 2


def test_a_machine_without_driver_and_tool(nvml_stub: Callable) -> None:
    reading = Read({**nvml_stub(), "PATH": ""}, NO_DRIVER="1")
    assert reading.devices == []
    assert "Driver Not Loaded" in reading.problem
    assert "nvidia-smi" in reading.problem
