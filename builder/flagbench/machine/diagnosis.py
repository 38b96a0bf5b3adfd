"""Checks of a machine before a run, each with a remedy.

`flagbench doctor` and `flagbench reproduce` print the findings, so that both report a problem in the same words.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from flagbench.machine.disturbance_limits import FREE_DISK, LOAD
from flagbench.machine.health import MachineHealth
from flagbench.machine.look import MachineFacts
from flagbench.machine.vendors import LOST_REMEDY
from flagbench_core.health.judge import HealthOutcome, judge_health

GIB = 2**30
"""Bytes of a GiB."""
DISK_REMEDY = "name folders on a disk with free space: TMPDIR for a run's own files, --store for its record"


class Level(str, Enum):
    """How serious a finding is."""

    OK = "ok"
    """It prevents no run."""
    WARN = "warn"
    """It prevents some runs, or makes their numbers unreliable."""
    FAIL = "fail"
    """It prevents every run."""


@dataclass(frozen=True)
class Diagnosis:
    """The finding of one check."""

    name: str
    """The name of what was checked, such as `memory`."""
    level: Level
    detail: str
    """What was found, in words."""
    remedy: str | None = None
    """What a person can do about it; None if nothing is wrong."""


def check_disturbances(facts: MachineFacts) -> Iterator[Diagnosis]:
    """Report lowered power limits, and other programs on the devices."""
    for cap in facts.power_caps:
        yield Diagnosis("power cap", Level.WARN, cap, "ask the machine's administrator to set the default")
    if facts.programs:
        yield Diagnosis(
            "foreign processes",
            Level.WARN,
            f"on the devices: {', '.join(facts.programs)}",
            "end them, or the measurement shares the device with them",
        )


def check_lost_devices(facts: MachineFacts) -> Iterator[Diagnosis]:
    """Report devices that the machine has and that do not answer."""
    if facts.accelerators.lost:
        yield Diagnosis("lost devices", Level.WARN, "; ".join(facts.accelerators.lost), LOST_REMEDY)


def check_device_health(health: MachineHealth) -> Iterator[Diagnosis]:
    """Report what is wrong with the devices' health now.

    Errors in the kernel log are from before, so they are listed and not judged.
    """
    if health.problem is not None:
        yield Diagnosis("device health", Level.OK, f"not known: {health.problem}")
    elif health.devices:
        yield Diagnosis("device health", Level.OK, f"{len(health.devices)} read by {health.source}")
    # It compares a reading after a run with one before; here both are the same one.
    for finding in judge_health(health.devices, health.devices):
        if finding.outcome in (HealthOutcome.FAIL, HealthOutcome.FIX, HealthOutcome.INCONCLUSIVE):
            detail = f"device {finding.index} ({finding.uuid}): {finding.reason}"
            yield Diagnosis(finding.kind, Level.WARN, detail, finding.remedy)
    if health.xids is None:
        return
    for xid in health.xids.xids:
        detail = f"Xid {xid.code} of {xid.pci_address}, {xid.count} times since the log began: {xid.text}"
        yield Diagnosis("kernel log", Level.OK, detail)


def check_load(facts: MachineFacts) -> Iterator[Diagnosis]:
    """Report other load on the processors, before a run that uses them."""
    if facts.load >= LOAD:
        yield Diagnosis(
            "foreign processes",
            Level.WARN,
            f"the load is {facts.load:.1f} per processor before the run",
            "end what else runs here, or the measurement shares the machine with it",
        )


def check_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> Diagnosis:
    """Report the available memory, and the limit of this process's control group if it is below the machine's memory.

    Args:
        meminfo: the kernel's file with sizes of memory.
        cgroup: the folder of control groups, of version 2 or 1.
    """
    try:
        kilobytes = dict(re.findall(r"^(\w+):\s+(\d+) kB", meminfo.read_text(), re.MULTILINE))
        total = 1024 * int(kilobytes["MemTotal"])
        available = 1024 * int(kilobytes["MemAvailable"])
    except (OSError, KeyError) as error:
        return Diagnosis("memory", Level.WARN, f"unknown: {meminfo}: {error}", "mount /proc, which runs read too")
    detail = f"{available / GIB:.1f} of {total / GIB:.1f} GiB available"
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        # The file of the other version does not exist. Without a limit, version 2 has the word `max` in it.
        with contextlib.suppress(OSError, ValueError):
            limit = int((cgroup / name).read_text())
            if limit < total:
                return Diagnosis("memory", Level.OK, f"{detail}; limited to {limit / GIB:.1f} GiB")
    return Diagnosis("memory", Level.OK, detail)


def check_disk(name: str, folder: Path | None = None, least: int = FREE_DISK) -> Diagnosis:
    """Report the free space on the disk of a folder.

    Args:
        name: the name of the finding.
        folder: by default the folder for temporary files.
        least: bytes below which the finding is a warning; a run needs much less.
    """
    try:
        folder = folder or Path(tempfile.gettempdir())
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Diagnosis(name, Level.WARN, f"unknown: {error}", DISK_REMEDY)
    detail = f"{free / GIB:.1f} GiB free at {folder}"
    if free < least:
        return Diagnosis(name, Level.WARN, detail, DISK_REMEDY)
    return Diagnosis(name, Level.OK, detail)
