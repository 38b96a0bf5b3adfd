"""Reads the health of NVIDIA devices from the output of nvidia-smi, if NVML cannot be used from Python."""

from __future__ import annotations

import csv
import re
import shutil
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

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
"""The first columns of the query."""
_INVALID = re.compile(r'Field "([^"]+)" is not a valid field')
"""What the tool prints if its version does not know a field of the query."""
_ACTIONS = {
    "None": 0,
    "Reset": 1,
    "GPU Reset": 1,
    "Reboot": 2,
    "Node Reboot": 2,
    "Drain P2P": 3,
    "Drain and Reset": 4,
}
"""The numbers of recovery actions (see DeviceHealth.recovery_action) by what the tool prints."""
_STATES = {"Not Supported": 0, "Not Started": 1, "In Progress": 2, "Completed": 3}
"""The numbers of states of the NVLink fabric (see DeviceHealth.fabric_state) by what the tool prints."""
_LINK = re.compile(r"^\s*Link (\d+): (.+?)\s*$")
_HEAD = re.compile(r"^GPU \d+: .*\(UUID: (\S+)\)")

# Parsers of cells. Each returns None for a cell without a value, such as [N/A].


def _count(cell: str) -> Optional[int]:
    if cell.isdecimal():
        return int(cell)
    return None


def _nanoseconds(cell: str) -> Optional[int]:
    microseconds = _count(cell)
    if microseconds is None:
        return None
    return microseconds * 1000


def _flag(cell: str) -> Optional[bool]:
    if cell in ("Yes", "Enabled", "1"):
        return True
    if cell in ("No", "Disabled", "0"):
        return False
    return None


def _status(cell: str) -> Optional[int]:
    if cell == "Success":
        return 0
    return None


class _Column(NamedTuple):
    """A column of the query."""

    name: str
    """Its name in `nvidia-smi --help-query-gpu`."""
    parse: Callable[[str], Any]


class Links(NamedTuple):
    """The numbers of a device's NVLinks."""

    up: Tuple[int, ...] = ()
    down: Tuple[int, ...] = ()


_QUERY: Mapping[str, _Column] = {
    "mig_enabled": _Column("mig.mode.current", _flag),
    "ecc_enabled": _Column("ecc.mode.current", _flag),
    "ecc_corrected": _Column("ecc.errors.corrected.volatile.total", _count),
    "ecc_uncorrected": _Column("ecc.errors.uncorrected.volatile.total", _count),
    "ecc_corrected_aggregate": _Column("ecc.errors.corrected.aggregate.total", _count),
    "ecc_uncorrected_aggregate": _Column("ecc.errors.uncorrected.aggregate.total", _count),
    "row_remap_corrected": _Column("remapped_rows.correctable", _count),
    "row_remap_uncorrected": _Column("remapped_rows.uncorrectable", _count),
    "row_remap_pending": _Column("remapped_rows.pending", _flag),
    "row_remap_failed": _Column("remapped_rows.failure", _flag),
    "recovery_action": _Column("gpu_recovery_action", _ACTIONS.get),
    "pcie_generation": _Column("pcie.link.gen.current", _count),
    "pcie_width": _Column("pcie.link.width.current", _count),
    "pcie_generation_max": _Column("pcie.link.gen.max", _count),
    "pcie_width_max": _Column("pcie.link.width.max", _count),
    "slowed_sw_thermal_ns": _Column("clocks_event_reasons_counters.sw_thermal_slowdown", _nanoseconds),
    "slowed_hw_thermal_ns": _Column("clocks_event_reasons_counters.hw_thermal_slowdown", _nanoseconds),
    "slowed_power_brake_ns": _Column("clocks_event_reasons_counters.hw_power_brake_slowdown", _nanoseconds),
    "slowed_power_cap_ns": _Column("clocks_event_reasons_counters.sw_power_cap", _nanoseconds),
    "fabric_state": _Column("fabric.state", _STATES.get),
    "fabric_status": _Column("fabric.status", _status),
}
"""The columns by the fields of DeviceHealth. The tool prints the time of lowered clocks in microseconds."""


class NvidiaSmiReader:
    """The devices that nvidia-smi lists."""

    source = TOOL

    def open(self) -> List[DeviceHealth]:
        """List and read all devices, which the tool does in one call. Raises ToolError."""
        tool = shutil.which(TOOL)
        if tool is None:
            raise ToolError("%s was not found on PATH" % TOOL)
        began = time.time()
        names, text = _query_devices(tool)
        links = parse_links(run_tool([tool, "nvlink", "--status"]).stdout)
        devices = parse(text, names, links, round(began, 3))
        if not devices:
            first_line = text.strip().partition("\n")[0] or "it prints nothing"
            raise ToolError("%s lists no device: %s" % (TOOL, first_line))
        return devices

    def read(self, device: DeviceHealth) -> DeviceHealth:
        """The device: it was read when it was listed."""
        return device


def _query_devices(tool: str) -> Tuple[List[str], str]:
    """The fields that this version of the tool knows, and the CSV that it prints of them.

    The tool names one unknown field at a time, so it is called until it knows all that are left.
    """
    names = list(_QUERY)
    while True:
        columns = [*_IDENTITY, *(_QUERY[name].name for name in names)]
        answer = run_tool([tool, "--query-gpu=%s" % ",".join(columns), "--format=csv,noheader,nounits"])
        invalid = _INVALID.search(answer.stdout + answer.stderr)
        if invalid is None:
            return names, answer.stdout
        known = [name for name in names if _QUERY[name].name != invalid[1]]
        if len(known) == len(names):  # it does not know a column of _IDENTITY
            return names, answer.stdout
        names = known


def parse(text: str, names: List[str], links: Mapping[str, Links], when: float) -> List[DeviceHealth]:
    """The devices in the CSV of `--query-gpu`, whose columns are those of _IDENTITY and of the fields `names`.

    Args:
        links: the NVLinks of each device by its UUID.
        when: the time of the reading, Unix seconds.
    """
    devices: List[DeviceHealth] = []
    for row in csv.reader(text.splitlines()):
        cells = [cell.strip() for cell in row]
        if len(cells) != len(_IDENTITY) + len(names):  # a message
            continue
        index = len(devices)
        uuid: Optional[str] = cells[0]
        silence = _silence(cells)
        if silence is not None:
            if not cells[0].startswith("GPU-"):
                uuid = None
            devices.append(DeviceHealth(index=index, uuid=uuid, unanswered=silence))
            continue
        values: Dict[str, Any] = {}
        refusals = dict.fromkeys(READ, NO_CALL)
        for name, cell in zip(names, cells[len(_IDENTITY) :]):
            value = _QUERY[name].parse(cell)
            if value is None:
                refusals[name] = _refusal(cell)
            else:
                values[name] = value
        if cells[0] in links:
            values["nvlinks_up"] = links[cells[0]].up
            values["nvlinks_down"] = links[cells[0]].down
        for name in values:
            del refusals[name]
        values.update(uuid=uuid, name=cells[1], pci_address=pci_address(cells[2]))
        devices.append(DeviceHealth(index=index, time=when, refusals=refusals, **values))
    return devices


def parse_links(text: str) -> Dict[str, Links]:
    """The NVLinks of each device by its UUID, from the output of `nvidia-smi nvlink --status`."""
    links: Dict[str, Links] = {}
    uuid = None
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head is not None:
            uuid = head[1]
        link = _LINK.match(line)
        if link is None or uuid is None:
            continue
        number, state = int(link[1]), link[2].lower()
        up, down = links.get(uuid, Links())
        if "inactive" in state:
            links[uuid] = Links(up, (*down, number))
        else:
            links[uuid] = Links((*up, number), down)
    return links


def _silence(cells: List[str]) -> Optional[str]:
    """Why a device does not answer, according to the cells of its row; None if it answers."""
    for cell in cells:
        if "GPU is lost" in cell:
            return LOST
        if "requires reset" in cell:
            return RESET_REQUIRED
        if "Unknown Error" in cell:
            return UNKNOWN_ERROR
    return None


def _refusal(cell: str) -> str:
    """Why a cell has no value: nvidia-smi prints `[N/A]`, `[Not Supported]`, `[Insufficient Permissions]` there."""
    words = cell.strip("[]").strip()
    if words in ("N/A", "Not Supported", ""):
        return NOT_SUPPORTED
    return words.lower()
