"""What is wrong with a machine before a run, each finding with a remedy, in the words of every command."""

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
DISK_REMEDY = "name folders on a disk with free space: TMPDIR for a run's own files, --store for its record"


class Level(str, Enum):
    """Whether a finding prevents nothing, some runs, or every run."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Diagnosis:
    """The result of one check."""

    name: str
    level: Level
    detail: str
    remedy: str | None = None


def disturbances(facts: MachineFacts) -> Iterator[Diagnosis]:
    """Lowered power limits, and other programs on the devices."""
    for cap in facts.power_caps:
        yield Diagnosis("power cap", Level.WARN, cap, "ask the machine's administrator to set the default")
    if facts.programs:
        yield Diagnosis(
            "foreign processes",
            Level.WARN,
            f"on the devices: {', '.join(facts.programs)}",
            "end them, or the measurement shares the device with them",
        )


def lost_devices(facts: MachineFacts) -> Iterator[Diagnosis]:
    """Devices that are here and do not answer."""
    if facts.accelerators.lost:
        yield Diagnosis("lost devices", Level.WARN, "; ".join(facts.accelerators.lost), LOST_REMEDY)


def device_health(health: MachineHealth) -> Iterator[Diagnosis]:
    """What the last reading of the devices' health says; errors that the kernel log has of before are only named."""
    if health.problem is not None:
        yield Diagnosis("device health", Level.OK, f"not known: {health.problem}")
    elif health.devices:
        yield Diagnosis("device health", Level.OK, f"{len(health.devices)} read by {health.source}")
    for finding in judge_health(health.devices, health.devices):
        if finding.outcome in (HealthOutcome.FAIL, HealthOutcome.FIX, HealthOutcome.INCONCLUSIVE):
            detail = f"device {finding.index} ({finding.uuid}): {finding.reason}"
            yield Diagnosis(finding.kind, Level.WARN, detail, finding.remedy)
    if health.xids is None:
        return
    for xid in health.xids.xids:
        detail = f"Xid {xid.code} of {xid.pci_address}, {xid.count} times since the log began: {xid.text}"
        yield Diagnosis("kernel log", Level.OK, detail)


def high_load(facts: MachineFacts) -> Iterator[Diagnosis]:
    """Other load on the processors, before a run on them."""
    if facts.load >= LOAD:
        yield Diagnosis(
            "foreign processes",
            Level.WARN,
            f"the load is {facts.load:.1f} per processor before the run",
            "end what else runs here, or the measurement shares the machine with it",
        )


def memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> Diagnosis:
    """Available memory, and the control group's limit (version 2, else 1) if it is lower."""
    try:
        amounts = dict(re.findall(r"^(\w+):\s+(\d+) kB", meminfo.read_text(), re.MULTILINE))
        total, available = 1024 * int(amounts["MemTotal"]), 1024 * int(amounts["MemAvailable"])
    except (OSError, KeyError) as error:
        return Diagnosis("memory", Level.WARN, f"unknown: {meminfo}: {error}", "mount /proc, which runs read too")
    detail = f"{available / GIB:.1f} of {total / GIB:.1f} GiB available"
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        # Absent in the other version; `max` where there is no limit.
        with contextlib.suppress(OSError, ValueError):
            limit = int((cgroup / name).read_text())
            if limit < total:
                return Diagnosis("memory", Level.OK, f"{detail}; limited to {limit / GIB:.1f} GiB")
    return Diagnosis("memory", Level.OK, detail)


def disk(name: str, folder: Path | None = None, least: int = FREE_DISK) -> Diagnosis:
    """Free space on the disk of a folder, by default the temporary one; a run needs well under `least` bytes."""
    try:
        folder = folder or Path(tempfile.gettempdir())
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Diagnosis(name, Level.WARN, f"unknown: {error}", DISK_REMEDY)
    detail = f"{free / GIB:.1f} GiB free at {folder}"
    if free < least:
        return Diagnosis(name, Level.WARN, detail, DISK_REMEDY)
    return Diagnosis(name, Level.OK, detail)
