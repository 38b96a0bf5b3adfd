"""The accelerators of this machine, as their vendor's tool reports them: what runs must fit, and what disturbs them."""

from __future__ import annotations

import csv
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

PATIENCE_S = 10.0
"""How long a vendor's tool may take; it hangs where a driver does."""
_GPU_FIELDS = (
    *("index", "name", "uuid", "driver_version", "memory.total", "memory.used", "mig.mode.current"),
    *("power.limit", "power.default_limit"),
)
_PROCESS_FIELDS = ("gpu_uuid", "pid", "process_name")


@dataclass(frozen=True)
class Gpu:
    """One accelerator. What its tool does not say is None."""

    index: int
    name: str
    uuid: str
    driver: str | None = None
    memory_mib: float | None = None
    used_mib: float | None = None
    mig: bool = False
    power_limit_w: float | None = None
    power_default_w: float | None = None


@dataclass(frozen=True)
class Machine:
    """The accelerators that a run would see."""

    gpus: tuple[Gpu, ...] = ()
    processes: tuple[str, ...] = ()
    """Other programs on them, `python (pid 4711)`."""
    problem: str | None = None
    """Why the tool did not say; None if it did, or if there is none."""


def this_machine() -> Machine:
    """The accelerators that CUDA_VISIBLE_DEVICES leaves. Asks their tool for at most PATIENCE_S; never raises."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Machine()
    text, problem = _answer([tool, f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader,nounits"])
    gpus = visible(parse_gpus(text), os.environ.get("CUDA_VISIBLE_DEVICES"))
    if not gpus:
        return Machine(problem=problem and f"nvidia-smi {problem}")
    text, _ = _answer([tool, f"--query-compute-apps={','.join(_PROCESS_FIELDS)}", "--format=csv,noheader,nounits"])
    return Machine(gpus, parse_processes(text, {gpu.uuid for gpu in gpus}))


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """The accelerators in the CSV of `nvidia-smi --query-gpu`; other lines are skipped."""
    found = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) == len(_GPU_FIELDS) and row[0].strip().isdecimal():
            cells = [cell.strip() for cell in row]
            numbers = [_number(cell) for cell in cells]
            found.append(
                Gpu(
                    index=int(cells[0]),
                    name=cells[1],
                    uuid=cells[2],
                    driver=cells[3] if cells[3][:1].isdecimal() else None,
                    memory_mib=numbers[4],
                    used_mib=numbers[5],
                    mig=cells[6] == "Enabled" or cells[2].startswith("MIG-"),
                    power_limit_w=numbers[7],
                    power_default_w=numbers[8],
                )
            )
    return tuple(found)


def parse_processes(text: str, uuids: set[str]) -> tuple[str, ...]:
    """The programs on these accelerators in the CSV of `nvidia-smi --query-compute-apps`; other lines are skipped."""
    found = {}
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) >= len(_PROCESS_FIELDS) and row[0].strip() in uuids and row[1].strip().isdecimal():
            found[int(row[1])] = f"{row[2].strip().rpartition('/')[2]} (pid {row[1].strip()})"
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


def _answer(command: list[str]) -> tuple[str, str | None]:
    """What a command prints, or nothing and why. One that hangs in the kernel is not waited for."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return "", f"cannot be started: {error.strerror or error}"
    try:
        text, _ = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1)
        return "", f"did not answer within {PATIENCE_S:g} s"
    if process.returncode:
        return "", f"failed with exit code {process.returncode}"
    return text, None
