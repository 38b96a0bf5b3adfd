"""Reading health from vendors' tools, where NVML cannot be used: nvidia-smi's tables and amd-smi's JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from flagbench_core.health import amd_smi, nvml
from flagbench_core.health.nvidia_smi import NvidiaSmiReader, parse_links
from flagbench_core.health.read import read_health
from flagbench_core.health.reading import LOST, NO_CALL, NOT_KNOWN, NOT_SUPPORTED, READ, DeviceHealth
from flagbench_core.health.tools import ToolError

pytestmark = pytest.mark.image

UUID = "GPU-5bb4bd9d-8c1f-d04c-98b6-0b2a5f1de2e4"
CELLS = {
    "uuid": UUID,
    "name": "NVIDIA H100 80GB HBM3",
    "pci.bus_id": "00000000:9B:00.0",
    "mig.mode.current": "Disabled",
    "ecc.mode.current": "Enabled",
    "ecc.errors.corrected.volatile.total": "3",
    "ecc.errors.uncorrected.volatile.total": "1",
    "ecc.errors.corrected.aggregate.total": "9",
    "ecc.errors.uncorrected.aggregate.total": "[N/A]",
    "remapped_rows.correctable": "0",
    "remapped_rows.uncorrectable": "2",
    "remapped_rows.pending": "Yes",
    "remapped_rows.failure": "No",
    "gpu_recovery_action": "Drain and Reset",
    "pcie.link.gen.current": "1",
    "pcie.link.width.current": "16",
    "pcie.link.gen.max": "5",
    "pcie.link.width.max": "16",
    "clocks_event_reasons_counters.sw_thermal_slowdown": "2500000",
    "clocks_event_reasons_counters.hw_thermal_slowdown": "0",
    "clocks_event_reasons_counters.hw_power_brake_slowdown": "[Insufficient Permissions]",
    "clocks_event_reasons_counters.sw_power_cap": "7",
    "fabric.state": "Completed",
    "fabric.status": "Success",
}
LINKS = f"""\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: {UUID})
\t Link 0: 26.562 GB/s
\t Link 1: <inactive>
\t Link 2: 26.562 GB/s
"""
TOOL = """#!%s
import sys
cells, links = %r, %r
if sys.argv[1] == "nvlink":
    print(links)
    sys.exit()
fields = sys.argv[1].partition("=")[2].split(",")
for field in fields:
    if field not in cells:
        print('Field "%%s" is not a valid field to query.' %% field)
        sys.exit(2)
print(", ".join(cells[field] for field in fields))
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, cells: dict[str, str]) -> None:
    """Put an nvidia-smi that knows these fields on PATH."""
    tool = folder / "nvidia-smi"
    tool.write_text(TOOL % (sys.executable, cells, LINKS))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def read(folder: Path, monkeypatch: pytest.MonkeyPatch, cells: dict[str, str]) -> DeviceHealth:
    install(folder, monkeypatch, cells)
    (device,) = NvidiaSmiReader().open()
    return device


def test_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = read(tmp_path, monkeypatch, CELLS)
    assert (device.uuid, device.pci_address, device.index) == (UUID, "0000:9b:00.0", 0)
    assert (device.ecc_corrected, device.ecc_uncorrected, device.ecc_corrected_aggregate) == (3, 1, 9)
    assert (device.row_remap_uncorrected, device.row_remap_pending, device.row_remap_failed) == (2, True, False)
    assert (device.recovery_action, device.fabric_state, device.fabric_status) == (4, 3, 0)
    assert (device.slowed_sw_thermal_ns, device.slowed_power_cap_ns) == (2_500_000_000, 7000)
    assert (device.nvlinks_up, device.nvlinks_down) == ((0, 2), (1,))
    assert device.refusals["ecc_uncorrected_aggregate"] == NOT_SUPPORTED
    assert device.refusals["slowed_power_brake_ns"] == "insufficient permissions"
    assert device.refusals["nvlink_replays"] == NO_CALL
    assert {name for name in READ if getattr(device, name) is None} == set(device.refusals)


def test_an_older_nvidia_smi_names_the_fields_that_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = ("gpu_recovery_action", "fabric.state", "fabric.status", "clocks_event_reasons_counters.sw_power_cap")
    device = read(tmp_path, monkeypatch, {name: cell for name, cell in CELLS.items() if name not in newer})
    assert (device.ecc_corrected, device.recovery_action, device.refusals["recovery_action"]) == (3, None, NO_CALL)


def test_a_device_that_nvidia_smi_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = read(tmp_path, monkeypatch, dict.fromkeys(CELLS, "[GPU is lost]"))
    assert (device.unanswered, device.uuid) == (LOST, None)


def test_a_tool_that_lists_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, {})
    with pytest.raises(ToolError) as refused:
        NvidiaSmiReader().open()
    assert "not a valid field" in str(refused.value)


@pytest.mark.skipif(nvml.pynvml is None, reason="asks NVML first")
def test_nvidia_smi_is_asked_where_nvml_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, CELLS)
    reading = read_health("nvml", [UUID])
    assert (reading.source, reading.devices[0].ecc_corrected) == ("nvidia-smi", 3)


def test_links_of_several_devices() -> None:
    links = parse_links(LINKS + LINKS.replace(UUID, "GPU-2").replace("26.562 GB/s", "<inactive>"))
    assert links == {UUID: ((0, 2), (1,)), "GPU-2": ((), (0, 1, 2))}


def test_amd_smi() -> None:
    ecc = {"total_correctable_count": 5, "total_uncorrectable_count": 1, "total_deferred_count": 0}
    pcie = {"width": 16, "speed": {"value": 32, "unit": "GT/s"}, "replay_count": "N/A"}
    printed: Any = [{"gpu": 0, "ecc": ecc, "pcie": pcie}, {"gpu": 1, "ecc": "N/A", "pcie": "N/A"}]
    for document in (printed, {"gpu_data": printed}):
        devices = amd_smi.parse("WARNING: groups\n" + json.dumps(document))
        values, refusals = devices[0]
        assert values == {"ecc_corrected": 5, "ecc_uncorrected": 1, "pcie_width": 16}
        assert (refusals["pcie_replays"], refusals["row_remap_failed"]) == (NOT_SUPPORTED, NOT_KNOWN)
        assert devices[1][0] == {}
        assert {*values, *refusals} == set(READ)


def test_what_no_source_shows_is_not_known() -> None:
    for monitor in ("mx-smi", "cpu"):
        reading = read_health(monitor, ["a", "b"])
        assert [device.index for device in reading.devices] == [0, 1]
        assert all(device.unanswered == reading.problem for device in reading.devices)
