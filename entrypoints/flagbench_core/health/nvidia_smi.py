"""Reads the health of NVIDIA devices from nvidia-smi, where NVML cannot be used from Python."""

from __future__ import annotations

import csv
import re
import shutil
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from flagbench_core.health.nvml import pci_address
from flagbench_core.health.reading import (
    LOST,
    NO_CALL,
    NOT_SUPPORTED,
    READ,
    RESET_REQUIRED,
    UNKNOWN_ERROR,
    DeviceHealth,
)
from flagbench_core.health.tools import ToolError, run_tool

TOOL = "nvidia-smi"
_IDENTITY = ("uuid", "name", "pci.bus_id")
_INVALID = re.compile(r'Field "([^"]+)" is not a valid field')
_ACTIONS = {
    "None": 0,
    "Reset": 1,
    "GPU Reset": 1,
    "Reboot": 2,
    "Node Reboot": 2,
    "Drain P2P": 3,
    "Drain and Reset": 4,
}
_STATES = {"Not Supported": 0, "Not Started": 1, "In Progress": 2, "Completed": 3}
_LINK = re.compile(r"^\s*Link (\d+): (.+?)\s*$")
_HEAD = re.compile(r"^GPU \d+: .*\(UUID: (\S+)\)")


def _count(cell: str) -> Optional[int]:
    return int(cell) if cell.isdecimal() else None


def _nanoseconds(cell: str) -> Optional[int]:
    microseconds = _count(cell)
    return None if microseconds is None else microseconds * 1000


def _flag(cell: str) -> Optional[bool]:
    if cell in ("Yes", "Enabled", "1"):
        return True
    if cell in ("No", "Disabled", "0"):
        return False
    return None


def _status(cell: str) -> Optional[int]:
    return 0 if cell == "Success" else None


_QUERY: Mapping[str, Tuple[str, Callable[[str], Any]]] = {
    "mig_enabled": ("mig.mode.current", _flag),
    "ecc_enabled": ("ecc.mode.current", _flag),
    "ecc_corrected": ("ecc.errors.corrected.volatile.total", _count),
    "ecc_uncorrected": ("ecc.errors.uncorrected.volatile.total", _count),
    "ecc_corrected_aggregate": ("ecc.errors.corrected.aggregate.total", _count),
    "ecc_uncorrected_aggregate": ("ecc.errors.uncorrected.aggregate.total", _count),
    "row_remap_corrected": ("remapped_rows.correctable", _count),
    "row_remap_uncorrected": ("remapped_rows.uncorrectable", _count),
    "row_remap_pending": ("remapped_rows.pending", _flag),
    "row_remap_failed": ("remapped_rows.failure", _flag),
    "recovery_action": ("gpu_recovery_action", _ACTIONS.get),
    "pcie_generation": ("pcie.link.gen.current", _count),
    "pcie_width": ("pcie.link.width.current", _count),
    "pcie_generation_max": ("pcie.link.gen.max", _count),
    "pcie_width_max": ("pcie.link.width.max", _count),
    "slowed_sw_thermal_ns": ("clocks_event_reasons_counters.sw_thermal_slowdown", _nanoseconds),
    "slowed_hw_thermal_ns": ("clocks_event_reasons_counters.hw_thermal_slowdown", _nanoseconds),
    "slowed_power_brake_ns": ("clocks_event_reasons_counters.hw_power_brake_slowdown", _nanoseconds),
    "slowed_power_cap_ns": ("clocks_event_reasons_counters.sw_power_cap", _nanoseconds),
    "fabric_state": ("fabric.state", _STATES.get),
    "fabric_status": ("fabric.status", _status),
}
"""Fields by their names in `nvidia-smi --help-query-gpu`. Counters of lowered clocks are in microseconds there."""
_OF_LINKS = ("nvlinks_up", "nvlinks_down")


class NvidiaSmiReader:
    """The devices that nvidia-smi lists."""

    source = TOOL

    def open(self) -> List[DeviceHealth]:
        """Each device, read at once. Raises ToolError."""
        tool = shutil.which(TOOL)
        if tool is None:
            raise ToolError("%s was not found on PATH" % TOOL)
        began = time.time()
        names, text = _query(tool)
        links = parse_links(run_tool([tool, "nvlink", "--status"]).stdout)
        devices = parse(text, names, links, round(began, 3))
        if not devices:
            words = text.strip().partition("\n")[0] or "it prints nothing"
            raise ToolError("%s lists no device: %s" % (TOOL, words))
        return devices

    def read(self, device: DeviceHealth) -> DeviceHealth:
        """The device: it was read when it was listed."""
        return device


def _query(tool: str) -> Tuple[List[str], str]:
    """The fields that this version knows, and what it prints of them. It names one unknown field at a time."""
    names = list(_QUERY)
    while True:
        columns = [*_IDENTITY, *(_QUERY[name][0] for name in names)]
        answer = run_tool([tool, "--query-gpu=%s" % ",".join(columns), "--format=csv,noheader,nounits"])
        invalid = _INVALID.search(answer.stdout + answer.stderr)
        known = [name for name in names if invalid is None or _QUERY[name][0] != invalid[1]]
        if len(known) == len(names):
            return names, answer.stdout
        names = known


def parse(
    text: str, names: List[str], links: Mapping[str, Tuple[Tuple[int, ...], Tuple[int, ...]]], when: float
) -> List[DeviceHealth]:
    """The devices in the CSV of `--query-gpu` with the columns of _IDENTITY and of the fields `names`."""
    devices: List[DeviceHealth] = []
    for row in csv.reader(text.splitlines()):
        cells = [cell.strip() for cell in row]
        if len(cells) != len(_IDENTITY) + len(names):
            continue
        index = len(devices)
        silence = _silence(cells)
        if silence is not None:
            uuid = cells[0] if cells[0].startswith("GPU-") else None
            devices.append(DeviceHealth(index=index, uuid=uuid, unanswered=silence))
            continue
        values: Dict[str, Any] = {}
        refusals = dict.fromkeys(READ, NO_CALL)
        for name, cell in zip(names, cells[len(_IDENTITY) :]):
            value = _QUERY[name][1](cell)
            if value is None:
                refusals[name] = _words(cell)
            else:
                values[name] = value
        if cells[0] in links:
            values.update(zip(_OF_LINKS, links[cells[0]]))
        for name in values:
            del refusals[name]
        values.update(uuid=cells[0], name=cells[1], pci_address=pci_address(cells[2]))
        devices.append(DeviceHealth(index=index, time=when, refusals=refusals, **values))
    return devices


def parse_links(text: str) -> Dict[str, Tuple[Tuple[int, ...], Tuple[int, ...]]]:
    """By UUID the links that are up and those that are down, of `nvidia-smi nvlink --status`."""
    links: Dict[str, Tuple[Tuple[int, ...], Tuple[int, ...]]] = {}
    uuid = None
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head is not None:
            uuid = head[1]
        link = _LINK.match(line)
        if link is None or uuid is None:
            continue
        up, down = links.get(uuid, ((), ()))
        if "inactive" in link[2].lower():
            down += (int(link[1]),)
        else:
            up += (int(link[1]),)
        links[uuid] = up, down
    return links


def _silence(cells: List[str]) -> Optional[str]:
    """Why a device does not answer, by what stands in its row."""
    for cell in cells:
        if "GPU is lost" in cell:
            return LOST
        if "requires reset" in cell:
            return RESET_REQUIRED
        if "Unknown Error" in cell:
            return UNKNOWN_ERROR
    return None


def _words(cell: str) -> str:
    """A refusal as nvidia-smi prints it: `[N/A]`, `[Not Supported]`, `[Insufficient Permissions]`."""
    words = cell.strip("[]").strip()
    if words in ("N/A", "Not Supported", ""):
        return NOT_SUPPORTED
    return words.lower()
