"""NVIDIA's accelerators, by nvidia-smi."""

from __future__ import annotations

import csv
import os
import re
import shutil
from contextlib import suppress
from dataclasses import replace

from flagbench.machine.vendors import (
    DeviceState,
    Listing,
    LocalDevice,
    Usage,
    addresses_in,
    ask_tool,
    listing_of,
)
from flagbench.system.queries import Ending

NAME, TOOL, PCI_VENDOR = "nvidia", "nvidia-smi", "0x10de"
MONITOR, WRITES_XIDS = "nvml", True
PCI_CLASSES = ("0x03", "0x12")
_LOST = r"GPU is lost|Unable to determine the device handle|fallen off the bus"
"""Of a line that names a device which the driver cannot reach."""
_LOST_CODE = 15
"""The exit code of nvidia-smi where a device has fallen off the bus or is not accessible (its manual page)."""
_UNREADABLE = r"\[(?:Unknown Error|GPU is lost|GPU requires reset)\]|ERR!"
"""What stands in the row of a device that does not answer."""
_NO_DEVICE = "No devices were found"
_STATE = ("uuid", "driver_version", "mig.mode.current", "power.limit", "power.default_limit")
_PROCESS = ("gpu_uuid", "pid", "process_name")
_ROW = r"\s*([^,\x00-\x1f]{1,100}?)\s*,\s*([^,]*?)\s*,\s*((?:GPU|MIG)-[0-9A-Za-z/-]+)\s*(?:,.*)?"
_FORMAT = "--format=csv,noheader,nounits"


def find(path: str) -> Listing:
    """The devices; parts of one (MIG) are marked, and those that do not answer are named."""
    tool = shutil.which(TOOL, path=path)
    if tool is None:
        return Listing(Ending.MISSING)
    # Not with their state: an older driver refuses a query with a field that it does not know.
    answer = ask_tool(tool, "--query-gpu=name,memory.total,uuid,index,pci.bus_id", "--format=csv")
    found, lost = parse_devices(answer.text), parse_lost(answer.text)
    if answer.code == _LOST_CODE and not lost:
        lost = (f"{TOOL} ended with exit code {_LOST_CODE}: a device has fallen off the bus or is not accessible",)
    if _NO_DEVICE in answer.text and not found and not lost:
        return Listing(Ending.ANSWERED, problem=f"{TOOL}: {_NO_DEVICE}")
    if not found:
        return listing_of(TOOL, answer, found, lost)
    parts = any(entry.strip().startswith("MIG-") for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))
    if not parts and any(device.memory_gib is None for device in found):
        # In a container with a part of a device, its memory is not shown; the list then has its parts.
        parts = re.search(r"^\s+MIG\s", ask_tool(tool, "-L").text, re.MULTILINE) is not None
    devices = [replace(device, partition=device.partition or parts) for device in found]
    return listing_of(TOOL, answer, devices, lost)


def usage(path: str) -> Usage:
    """Driver, parts and power limits of the devices, and the programs on them."""
    tool = shutil.which("nvidia-smi", path=path)
    if tool is None:
        return Usage()
    states = ask_tool(tool, f"--query-gpu={','.join(_STATE)}", _FORMAT)
    if states.ending is Ending.NO_ANSWER:  # the next question would hang, too
        return Usage()
    programs = ask_tool(tool, f"--query-compute-apps={','.join(_PROCESS)}", _FORMAT)
    return Usage(parse_state(states.text), parse_processes(programs.text))


def architecture(path: str) -> str | None:
    """By its compute capability, which drivers since 510 print: 9.0 is sm_90."""
    tool = shutil.which("nvidia-smi", path=path)
    if tool is None:
        return None
    answer = ask_tool(tool, "--query-gpu=compute_cap", "--format=csv,noheader")
    found = re.match(r"\s*(\d{1,2})\.(\d)\s*$", answer.text, re.MULTILINE)
    return f"sm_{found[1]}{found[2]}" if found else None


def parse_devices(text: str) -> tuple[LocalDevice, ...]:
    """The devices in the CSV of `--query-gpu=name,memory.total,uuid,...`; other lines are skipped."""
    found = []
    for line in text.splitlines():
        match = re.fullmatch(_ROW, line)
        if match and not re.search(_UNREADABLE, line):
            amount = re.fullmatch(r"(\d{1,9})(?:\s*MiB)?", match[2])
            memory = int(amount[1]) / 1024 if amount else None
            whole, part, _ = match[1].partition(" MIG ")
            found.append(LocalDevice(whole, memory, match[3], bool(part) or match[3].startswith("MIG-")))
    return tuple(found)


def parse_lost(text: str) -> tuple[str, ...]:
    """The devices that do not answer, by the lines that say so and the rows of `--query-gpu` that cannot be read."""
    found = []
    rows = 0
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        marker = re.search(_UNREADABLE, line)
        if len(cells) >= 3 and marker:
            index = cells[3] if len(cells) > 3 and cells[3].isdecimal() else str(rows)
            place = "".join(f" at {address}" for address in addresses_in(line))
            found.append(f"GPU {index}{place} does not answer: {marker[0]}")
        elif re.search(_LOST, line):
            found.append(f"{TOOL}: {line.strip()}")
        if marker or re.fullmatch(_ROW, line):
            rows += 1
    return tuple(found)


def parse_state(text: str) -> tuple[DeviceState, ...]:
    """The state of each device in the CSV of `--query-gpu`; other lines are skipped."""
    found = []
    for cells in _rows(text):
        if len(cells) == len(_STATE) and cells[0].startswith("GPU-"):
            driver = cells[1] if cells[1][:1].isdecimal() else None
            found.append(DeviceState(cells[0], driver, cells[2] == "Enabled", _number(cells[3]), _number(cells[4])))
    return tuple(found)


def parse_processes(text: str) -> tuple[tuple[str, str], ...]:
    """The UUID of the device and the name of each program in the CSV of `--query-compute-apps`."""
    found = {}
    for cells in _rows(text):
        if len(cells) >= len(_PROCESS) and cells[1].isdecimal():
            found[cells[1]] = cells[0], f"{cells[2].rpartition('/')[2]} (pid {cells[1]})"
    return tuple(found.values())


def _rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in row] for row in csv.reader(text.splitlines())]


def _number(cell: str) -> float | None:
    with suppress(ValueError):
        return float(cell)
    return None
