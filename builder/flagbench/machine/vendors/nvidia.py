"""NVIDIA's accelerators, by nvidia-smi."""

from __future__ import annotations

import csv
import os
import re
import shutil
from collections.abc import Sequence
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
"""In a line about a device that the driver cannot reach."""
_LOST_CODE = 15
"""The exit code of nvidia-smi where a device has fallen off the bus or is not accessible (its manual page)."""
_UNREADABLE = r"\[(?:Unknown Error|GPU is lost|GPU requires reset)\]|ERR!"
"""In the row of a device that does not answer."""
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
    devices, lost = parse_devices(answer.text), parse_lost(answer.text)
    if answer.code == _LOST_CODE and not lost:
        lost = (f"{TOOL} ended with exit code {_LOST_CODE}: a device has fallen off the bus or is not accessible",)
    if _NO_DEVICE in answer.text and not devices and not lost:
        return Listing(Ending.ANSWERED, problem=f"{TOOL}: {_NO_DEVICE}")
    if devices and _lists_only_parts(tool, devices):
        devices = tuple(replace(device, partition=True) for device in devices)
    return listing_of(TOOL, answer, devices, lost)


def _lists_only_parts(tool: str, devices: Sequence[LocalDevice]) -> bool:
    """Whether a run sees parts (MIG) of the devices that are listed, by CUDA_VISIBLE_DEVICES or in a container."""
    for text in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","):
        if text.strip().startswith("MIG-"):
            return True
    if all(device.memory_gib is not None for device in devices):
        return False
    # In a container with a part of a device, its memory is not shown; the list then has its parts.
    return re.search(r"^\s+MIG\s", ask_tool(tool, "-L").text, re.MULTILINE) is not None


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
    """From the compute capability, which drivers print from 510 on: 9.0 is sm_90."""
    tool = shutil.which("nvidia-smi", path=path)
    if tool is None:
        return None
    answer = ask_tool(tool, "--query-gpu=compute_cap", "--format=csv,noheader")
    version = re.match(r"\s*(\d{1,2})\.(\d)\s*$", answer.text, re.MULTILINE)
    if version is None:
        return None
    return f"sm_{version[1]}{version[2]}"


def parse_devices(text: str) -> tuple[LocalDevice, ...]:
    """The devices in the CSV of `--query-gpu=name,memory.total,uuid,...`; other lines are skipped."""
    devices = []
    for line in text.splitlines():
        match = re.fullmatch(_ROW, line)
        if match is None or re.search(_UNREADABLE, line):
            continue
        memory = None
        mebibytes = re.fullmatch(r"(\d{1,9})(?:\s*MiB)?", match[2])
        if mebibytes is not None:
            memory = int(mebibytes[1]) / 1024
        name, part, _ = match[1].partition(" MIG ")
        is_part = part != "" or match[3].startswith("MIG-")
        devices.append(LocalDevice(name, memory, match[3], is_part))
    return tuple(devices)


def parse_lost(text: str) -> tuple[str, ...]:
    """The devices that do not answer, by the lines that say so and the rows of `--query-gpu` that cannot be read."""
    sentences = []
    rows = 0
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        marker = re.search(_UNREADABLE, line)
        if len(cells) >= 3 and marker:
            index = str(rows)
            if len(cells) > 3 and cells[3].isdecimal():
                index = cells[3]
            place = "".join(f" at {address}" for address in addresses_in(line))
            sentences.append(f"GPU {index}{place} does not answer: {marker[0]}")
        elif re.search(_LOST, line):
            sentences.append(f"{TOOL}: {line.strip()}")
        if marker or re.fullmatch(_ROW, line):
            rows += 1
    return tuple(sentences)


def parse_state(text: str) -> tuple[DeviceState, ...]:
    """The state of each device in the CSV of `--query-gpu`; other lines are skipped."""
    states = []
    for cells in _rows(text):
        if len(cells) != len(_STATE) or not cells[0].startswith("GPU-"):
            continue
        uuid, version, mig, limit, default = cells
        driver = None
        if version[:1].isdecimal():
            driver = version
        states.append(DeviceState(uuid, driver, mig == "Enabled", _number(limit), _number(default)))
    return tuple(states)


def parse_processes(text: str) -> tuple[tuple[str, str], ...]:
    """The UUID of the device and the name of each program in the CSV of `--query-compute-apps`.

    A program on several devices comes once for each.
    """
    processes = []
    for cells in _rows(text):
        if len(cells) >= len(_PROCESS) and cells[1].isdecimal():
            uuid, pid, program = cells[:3]
            processes.append((uuid, f"{program.rpartition('/')[2]} (pid {pid})"))
    return tuple(dict.fromkeys(processes))


def _rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in row] for row in csv.reader(text.splitlines())]


def _number(cell: str) -> float | None:
    with suppress(ValueError):
        return float(cell)
    return None
