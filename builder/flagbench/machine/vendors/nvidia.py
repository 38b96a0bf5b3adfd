"""NVIDIA's accelerators, as nvidia-smi lists them."""

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
    Program,
    Usage,
    addresses_in,
    ask_tool,
    listing_of,
)
from flagbench.system.queries import Ending

NAME = "nvidia"
TOOL = "nvidia-smi"
PCI_VENDOR = "0x10de"
PCI_CLASSES = ("0x03", "0x12")
"""Display controllers and processing accelerators: a data centre GPU is a 3D controller (0x0302), others are VGA
controllers (0x0300)."""
MONITOR = "nvml"
WRITES_XIDS = True
_LOST = r"GPU is lost|Unable to determine the device handle|fallen off the bus"
"""Messages of nvidia-smi about a device that the driver cannot reach."""
_LOST_CODE = 15
"""The exit code of nvidia-smi if a device has fallen off the bus or is not accessible (its manual page)."""
_UNREADABLE = r"\[(?:Unknown Error|GPU is lost|GPU requires reset)\]|ERR!"
"""What nvidia-smi prints in place of a value if a device does not answer."""
_NO_DEVICE = "No devices were found"
_LIST = "name,memory.total,uuid,index,pci.bus_id"
"""The fields of `find`. Its devices are listed without their state: an older driver refuses a query with a field that
it does not have."""
_INDEX_COLUMN = 3
"""The column of the index in a row of `_LIST`."""
_STATE = ("uuid", "driver_version", "mig.mode.current", "power.limit", "power.default_limit")
"""The fields of a device's state."""
_PROGRAM = ("gpu_uuid", "pid", "process_name")
"""The fields of a program on a device."""
_ROW = re.compile(
    r"""
    \s* (?P<name>[^,\x00-\x1f]{1,100}?) \s* ,
    \s* (?P<memory>[^,]*?) \s* ,
    \s* (?P<uuid>(?:GPU|MIG)-[0-9A-Za-z/-]+) \s*
    (?: , .* )?
    """,
    re.VERBOSE,
)
"""A row of `_LIST`: `NVIDIA A100-SXM4-40GB, 40960 MiB, GPU-5bb4..., 0, 00000000:18:00.0`."""
_FORMAT = "--format=csv,noheader,nounits"


def find(search_path: str) -> Listing:
    """List the devices. Parts of devices (MIG instances) are marked, and devices that do not answer are in `lost`."""
    tool = shutil.which(TOOL, path=search_path)
    if tool is None:
        return Listing(Ending.MISSING)
    answer = ask_tool(tool, f"--query-gpu={_LIST}", "--format=csv")
    devices = parse_devices(answer.text)
    lost = parse_lost(answer.text)
    if answer.code == _LOST_CODE and not lost:
        lost = (f"{TOOL} ended with exit code {_LOST_CODE}: a device has fallen off the bus or is not accessible",)
    if _NO_DEVICE in answer.text and not devices and not lost:
        return Listing(Ending.ANSWERED, problem=f"{TOOL}: {_NO_DEVICE}")
    if devices and _uses_mig_instances(tool, devices):
        devices = tuple(replace(device, partition=True) for device in devices)
    return listing_of(TOOL, answer, devices, lost)


def _uses_mig_instances(tool: str, devices: Sequence[LocalDevice]) -> bool:
    """Whether a run would use MIG instances of the listed devices: by CUDA_VISIBLE_DEVICES, or in a container."""
    for text in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","):
        if text.strip().startswith("MIG-"):
            return True
    if all(device.memory_gib is not None for device in devices):
        return False
    # In a container with a MIG instance, the memory of the device is not shown, and `-L` lists the instances.
    return re.search(r"^\s+MIG\s", ask_tool(tool, "-L").text, re.MULTILINE) is not None


def usage(search_path: str) -> Usage:
    """Read the driver, MIG mode and power limits of the devices, and the programs on them."""
    tool = shutil.which(TOOL, path=search_path)
    if tool is None:
        return Usage()
    states = ask_tool(tool, f"--query-gpu={','.join(_STATE)}", _FORMAT)
    if states.ending is Ending.NO_ANSWER:  # The next query would hang, too.
        return Usage()
    programs = ask_tool(tool, f"--query-compute-apps={','.join(_PROGRAM)}", _FORMAT)
    return Usage(parse_state(states.text), parse_programs(programs.text))


def architecture(search_path: str) -> str | None:
    """Read the architecture of the first device from its compute capability: 9.0 is sm_90.

    Returns None if the driver does not print it; drivers do from version 510 on.
    """
    tool = shutil.which(TOOL, path=search_path)
    if tool is None:
        return None
    answer = ask_tool(tool, "--query-gpu=compute_cap", "--format=csv,noheader")
    version = re.match(r"\s*(\d{1,2})\.(\d)\s*$", answer.text, re.MULTILINE)
    if version is None:
        return None
    return f"sm_{version[1]}{version[2]}"


def parse_devices(text: str) -> tuple[LocalDevice, ...]:
    """Parse the devices in the CSV that `find` asks for; other lines are skipped."""
    devices = []
    for line in text.splitlines():
        match = _ROW.fullmatch(line)
        if match is None or re.search(_UNREADABLE, line):
            continue
        memory_gib = None
        mebibytes = re.fullmatch(r"(\d{1,9})(?:\s*MiB)?", match["memory"])
        if mebibytes is not None:
            memory_gib = int(mebibytes[1]) / 1024
        # A MIG instance is listed as `NVIDIA A100-SXM4-40GB MIG 1g.5gb`.
        name, mig, _ = match["name"].partition(" MIG ")
        is_instance = mig != "" or match["uuid"].startswith("MIG-")
        devices.append(LocalDevice(name, memory_gib, match["uuid"], is_instance))
    return tuple(devices)


def parse_lost(text: str) -> tuple[str, ...]:
    """Write a sentence for each device that does not answer, from the CSV that `find` asks for.

    Such a device is an unreadable row, or a message in place of one.
    """
    sentences = []
    rows = 0
    for line in text.splitlines():
        marker = re.search(_UNREADABLE, line)
        # A message has no commas; the row of a device has at least those of the values before its UUID.
        if marker and line.count(",") >= 2:
            sentences.append(f"{_device_of_row(line, rows)} does not answer: {marker[0]}")
        elif re.search(_LOST, line):
            sentences.append(f"{TOOL}: {line.strip()}")
        if marker or _ROW.fullmatch(line):
            rows += 1
    return tuple(sentences)


def _device_of_row(line: str, row: int) -> str:
    """Name the device of a row whose other values are unreadable, by its index and address.

    For `[Unknown Error], [Unknown Error], [Unknown Error], 1, 00000000:3A:00.0` the result is `GPU 1 at
    0000:3a:00.0`. The row `ERR!, ERR!, ERR!` has neither: then the index is that of the row.
    """
    cells = [cell.strip() for cell in line.split(",")]
    device = f"GPU {row}"
    if len(cells) > _INDEX_COLUMN and cells[_INDEX_COLUMN].isdecimal():
        device = f"GPU {cells[_INDEX_COLUMN]}"
    for address in addresses_in(line):
        device += f" at {address}"
    return device


def parse_state(text: str) -> tuple[DeviceState, ...]:
    """Parse the settings of each device in the CSV that `usage` asks for; other lines are skipped."""
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


def parse_programs(text: str) -> tuple[Program, ...]:
    """Parse the programs on the devices in the CSV that `usage` asks for; other lines are skipped.

    A program on several devices is listed once for each.
    """
    programs = []
    for cells in _rows(text):
        if len(cells) >= len(_PROGRAM) and cells[1].isdecimal():
            uuid, pid, path = cells[:3]
            name = path.rpartition("/")[2]
            programs.append(Program(uuid, f"{name} (pid {pid})"))
    return tuple(dict.fromkeys(programs))


def _rows(text: str) -> list[list[str]]:
    """The rows of a CSV as lists of cells."""
    return [[cell.strip() for cell in row] for row in csv.reader(text.splitlines())]


def _number(cell: str) -> float | None:
    """The number in a cell; None for words such as [N/A]."""
    with suppress(ValueError):
        return float(cell)
    return None
