"""NVIDIA's accelerators, by nvidia-smi."""

from __future__ import annotations

import csv
import os
import re
import shutil
from contextlib import suppress
from dataclasses import replace

from flagbench.machine.vendors import DeviceState, LocalDevice, Usage
from flagbench.system.queries import ask

_STATE = ("uuid", "driver_version", "mig.mode.current", "power.limit", "power.default_limit")
_PROCESS = ("gpu_uuid", "pid", "process_name")
_FORMAT = "--format=csv,noheader,nounits"


def find(path: str) -> tuple[tuple[LocalDevice, ...], str | None]:
    """The devices; parts of one (MIG) are marked."""
    tool = shutil.which("nvidia-smi", path=path)
    if tool is None:
        return (), None
    # Not with their state: an older driver refuses a query with a field that it does not know.
    text, problem = ask([tool, "--query-gpu=name,memory.total,uuid", "--format=csv"])
    if text is None:
        return (), f"nvidia-smi {problem}"
    found = parse_devices(text)
    if not found:
        return (), "nvidia-smi printed no device in a known form" if text.strip() else None
    parts = any(entry.strip().startswith("MIG-") for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))
    if not parts and any(device.memory_gib is None for device in found):
        # In a container with a part of a device, its memory is not shown; the list then has its parts.
        listed, _ = ask([tool, "-L"])
        parts = re.search(r"^\s+MIG\s", listed or "", re.MULTILINE) is not None
    return tuple(replace(device, partition=device.partition or parts) for device in found), None


def usage(path: str) -> Usage:
    """Driver, parts and power limits of the devices, and the programs on them."""
    tool = shutil.which("nvidia-smi", path=path)
    if tool is None:
        return Usage()
    text, _ = ask([tool, f"--query-gpu={','.join(_STATE)}", _FORMAT])
    programs, _ = ask([tool, f"--query-compute-apps={','.join(_PROCESS)}", _FORMAT])
    return Usage(parse_state(text or ""), parse_processes(programs or ""))


def architecture(path: str) -> str | None:
    """By its compute capability, which drivers since 510 print: 9.0 is sm_90."""
    tool = shutil.which("nvidia-smi", path=path)
    text, _ = ask([tool, "--query-gpu=compute_cap", "--format=csv,noheader"]) if tool else ("", None)
    found = re.match(r"\s*(\d{1,2})\.(\d)\s*$", text or "", re.MULTILINE)
    return f"sm_{found[1]}{found[2]}" if found else None


def parse_devices(text: str) -> tuple[LocalDevice, ...]:
    """The devices in the CSV of `--query-gpu=name,memory.total,uuid`; other lines are skipped."""
    found = []
    for line in text.splitlines():
        match = re.fullmatch(r"\s*([^,\x00-\x1f]{1,100}?)\s*,\s*([^,]*?)\s*,\s*((?:GPU|MIG)-[0-9A-Za-z/-]+)\s*", line)
        if match:
            amount = re.fullmatch(r"(\d{1,9})(?:\s*MiB)?", match[2])
            memory = int(amount[1]) / 1024 if amount else None
            whole, part, _ = match[1].partition(" MIG ")
            found.append(LocalDevice(whole, memory, match[3], bool(part) or match[3].startswith("MIG-")))
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
