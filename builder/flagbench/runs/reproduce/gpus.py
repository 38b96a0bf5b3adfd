"""What nvidia-smi knows of an accelerator beside its name: driver, parts, power cap, and who else uses it."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from flagbench.devices import tool_output

_FIELDS = (
    "index",
    "uuid",
    "driver_version",
    "memory.total",
    "mig.mode.current",
    "power.limit",
    "power.default_limit",
)
_PROCESS_FIELDS = ("gpu_uuid", "pid", "process_name")
_FORMAT = "--format=csv,noheader,nounits"


@dataclass(frozen=True)
class Gpu:
    """One accelerator. What its tool does not say is None."""

    index: int
    uuid: str
    driver: str | None = None
    memory_mib: float | None = None
    partitioned: bool = False
    """Whether it is divided into parts (MIG)."""
    power_limit_w: float | None = None
    power_default_w: float | None = None


@dataclass(frozen=True)
class Usage:
    """The accelerators that a run would see, and what else runs on them."""

    gpus: tuple[Gpu, ...] = ()
    processes: tuple[str, ...] = ()
    """`python (pid 4711)`."""


def usage_now() -> Usage:
    """What is known of the accelerators that CUDA_VISIBLE_DEVICES leaves; empty without nvidia-smi. Never raises."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Usage()
    text, _ = tool_output([tool, f"--query-gpu={','.join(_FIELDS)}", _FORMAT])
    gpus = visible(parse_gpus(text or ""), os.environ.get("CUDA_VISIBLE_DEVICES"))
    if not gpus:
        return Usage()
    text, _ = tool_output([tool, f"--query-compute-apps={','.join(_PROCESS_FIELDS)}", _FORMAT])
    return Usage(gpus, parse_processes(text or "", {gpu.uuid for gpu in gpus}))


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """The accelerators in the CSV of `nvidia-smi --query-gpu`; other lines are skipped."""
    found = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        cells = [cell.strip() for cell in row]
        if len(cells) != len(_FIELDS) or not (cells[0].isascii() and cells[0].isdecimal()):
            continue
        memory, limit, default = (_number(cells[place]) for place in (3, 5, 6))
        driver = cells[2] if cells[2][:1].isdecimal() else None
        found.append(Gpu(int(cells[0]), cells[1], driver, memory, cells[4] == "Enabled", limit, default))
    return tuple(found)


def parse_processes(text: str, uuids: set[str]) -> tuple[str, ...]:
    """The programs on these accelerators in the CSV of `nvidia-smi --query-compute-apps`; other lines are skipped."""
    found = {}
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        cells = [cell.strip() for cell in row]
        if len(cells) >= len(_PROCESS_FIELDS) and cells[0] in uuids and cells[1].isdecimal():
            found[cells[1]] = f"{cells[2].rpartition('/')[2]} (pid {cells[1]})"
    return tuple(found.values())


def visible(gpus: Sequence[Gpu], chosen: str | None) -> tuple[Gpu, ...]:
    """Those that CUDA_VISIBLE_DEVICES leaves: its entries up to the first that names none."""
    if chosen is None:
        return tuple(gpus)
    found: list[Gpu] = []
    for token in (entry.strip() for entry in chosen.split(",")):
        if token.isascii() and token.isdecimal():
            match = [gpu for gpu in gpus if gpu.index == int(token)]
        else:
            match = [gpu for gpu in gpus if token and gpu.uuid.startswith(token)]
        if len(match) != 1:
            break
        found += match
    return tuple(found)


def _number(cell: str) -> float | None:
    with suppress(ValueError):
        return float(cell)
    return None
