"""Checks what this machine needs for running flagbench; each finding has a remedy."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flagbench.errors import FlagbenchError
from flagbench.images.docker import open_engine
from flagbench.machine.devices import this_machine
from flagbench.machine.diagnosis import (
    DISK_REMEDY,
    Diagnosis,
    Level,
    device_health,
    disk,
    disturbances,
    lost_devices,
    memory,
)
from flagbench.machine.health import MachineHealth
from flagbench.machine.look import MachineFacts, look_at_machine
from flagbench.manifests.load import load_catalog
from flagbench.manifests.model import Catalog
from flagbench.records.folder_blobs import FolderBlobs
from flagbench.records.store import open_store
from flagbench.records.waiting import unsent_folder, waiting
from flagbench.runs.launchers.docker import DockerLauncher
from flagbench.runs.launchers.native import NEEDED, NativeLauncher
from flagbench.runs.launchers.schedulers import SCHEDULERS
from flagbench_core import __version__, scratch

_NATIVE_REMEDY = "for runs without a container, in the checkout: pip install -e '.[cases]'"
_TORCH_REMEDY = "for native runs on the accelerator, install the build that pytorch.org names, with --force-reinstall"
_DRIVER_REMEDY = "images of the cpu stack run here; for others install the accelerator's driver"
_MOST_LEFTOVERS = 4
_DISTRIBUTIONS = {"pynvml": "nvidia-ml-py"}
"""The distribution that installs a module, where the names differ."""


@dataclass(frozen=True)
class Examination:
    """The findings of `flagbench doctor`."""

    findings: list[Diagnosis]
    health: MachineHealth
    """Health of the devices that a run would use."""


def examine(store_url: str | None = None) -> Examination:
    """Run every check. Imports no framework and leaves nothing behind."""
    manifest_finding, catalog = check_manifests()
    facts = look_at_machine(health=True)
    health = facts.health or MachineHealth()
    findings = [
        Diagnosis("python", Level.OK, f"{platform.python_version()} ({platform.machine()})"),
        Diagnosis("flagbench", Level.OK, __version__),
        manifest_finding,
        check_store(store_url),
        *check_native_packages(catalog),
        # A container's quota may be lower than the machine's count.
        Diagnosis("cpus", Level.OK, f"{facts.processors} of {os.cpu_count()} usable"),
        memory(),
        *check_disks(store_url),
        find_leftovers(),
        find_unsent(),
        *disturbances(facts),
        *lost_devices(facts),
        *device_health(health),
        describe_accelerator(facts),
        NativeLauncher().health(),
        *(scheduler.health() for scheduler in SCHEDULERS.values()),
        check_docker(catalog),
    ]
    return Examination(findings, health)


def check_manifests() -> tuple[Diagnosis, Catalog | None]:
    """Whether the manifests can be loaded, with the number of cases, stacks and claims; and the catalog."""
    try:
        catalog = load_catalog()
    except FlagbenchError as error:
        # The number of problems and the first one; `flagbench list` shows the others.
        detail = " ".join(line.strip() for line in error.message.splitlines()[:2])
        return Diagnosis("manifests", Level.FAIL, detail, error.remedy), None
    counts = f"{len(catalog.cases)} cases, {len(catalog.stacks)} stacks, {len(catalog.claims)} claims"
    return Diagnosis("manifests", Level.OK, f"{catalog.root}: {counts}"), catalog


def check_store(url: str | None) -> Diagnosis:
    """Whether records can be stored."""
    try:
        health = open_store(url).health()
    except FlagbenchError as error:
        return Diagnosis("store", Level.FAIL, error.message, error.remedy)
    level = Level.OK if health.ok else Level.FAIL
    return Diagnosis("store", level, health.detail, health.remedy)


def check_native_packages(catalog: Catalog | None) -> Iterator[Diagnosis]:
    """Whether the packages that a native run imports are installed. None is imported: torch takes seconds."""
    importing: dict[str, list[str]] = {module: [] for module in (*NEEDED[1:], "pynvml")}
    for case in catalog.cases.values() if catalog else ():
        for module in sorted(case.imports):
            importing.setdefault(module, []).append(case.name)
    for module, cases in importing.items():
        if importlib.util.find_spec(module) is None:
            detail = "not installed"
            if cases:
                detail += f"; imported by {', '.join(cases)}"
            yield Diagnosis(module, Level.WARN, detail, _NATIVE_REMEDY)
            continue
        try:
            version = importlib.metadata.version(_DISTRIBUTIONS.get(module, module.replace("_", "-")))
        except importlib.metadata.PackageNotFoundError:
            version = "installed, version unknown"
        if module == "torch" and version.endswith("+cpu") and this_machine().devices:
            yield Diagnosis(module, Level.WARN, f"{version}, a build for processors alone", _TORCH_REMEDY)
            continue
        yield Diagnosis(module, Level.OK, version)


def check_disks(store_url: str | None) -> Iterator[Diagnosis]:
    """The disks that a run writes to: its own files into the temporary folder, its record into the store."""
    yield disk("temporary files")
    try:
        blobs = open_store(store_url).blobs
    except FlagbenchError:  # it is a finding of its own
        return
    if isinstance(blobs, FolderBlobs):
        folders = (blobs.root, *blobs.root.parents)
        yield disk("disk of the store", next(folder for folder in folders if os.access(folder, os.F_OK)))


def find_leftovers(folder: Path | None = None) -> Diagnosis:
    """Folders that killed runs of this user left in `folder`, by default the temporary one.

    No process holds their lock any more.
    """
    try:
        folder = folder or Path(tempfile.gettempdir())
        names = sorted(path.name for path in folder.glob("flagbench-*") if _is_left(path))
    except OSError as error:
        return Diagnosis("leftovers", Level.WARN, f"unknown: {error}", DISK_REMEDY)
    if not names:
        return Diagnosis("leftovers", Level.OK, f"none in {folder}")
    detail = f"{len(names)} left by killed runs in {folder}: {', '.join(names[:_MOST_LEFTOVERS])}"
    if len(names) > _MOST_LEFTOVERS:
        detail += ", ..."
    return Diagnosis("leftovers", Level.WARN, detail, "the next run with the same TMPDIR removes them")


def find_unsent() -> Diagnosis:
    """Whether a record or bundle of this user's runs was not stored."""
    count = len(waiting(unsent_folder()))
    if not count:
        return Diagnosis("unsent", Level.OK, f"nothing waits in {unsent_folder()}")
    detail = f"records and bundles that could not be stored wait in {unsent_folder()}: {count}"
    return Diagnosis("unsent", Level.WARN, detail, "`flagbench results push` stores them")


def _is_left(folder: Path) -> bool:
    lock = scratch.lock_leftover(str(folder))
    if lock is not None:
        os.close(lock)
    return lock is not None


def describe_accelerator(facts: MachineFacts) -> Diagnosis:
    """The accelerators that their vendor's tool shows, and their driver."""
    machine = facts.accelerators
    if machine.devices:
        return Diagnosis("accelerator", Level.OK, ", driver ".join([machine.described, *facts.drivers]))
    if machine.problem:
        return Diagnosis("accelerator", Level.WARN, machine.problem, machine.remedy or _DRIVER_REMEDY)
    return Diagnosis("accelerator", Level.WARN, "none was found", _DRIVER_REMEDY)


def check_docker(catalog: Catalog | None) -> Diagnosis:
    """The version of the container engine, and which of the catalog's images it has."""
    health = DockerLauncher().health()
    if health.level is not Level.OK:
        return health
    names = _image_names(catalog)
    try:
        with contextlib.closing(open_engine()) as engine:
            present = [name for name in names if engine.inspect(f"flagbench/{name}") is not None]
    except FlagbenchError as error:
        return Diagnosis("docker", Level.WARN, error.message, error.remedy)
    images = "no image of a case, `flagbench build` makes them"
    if present:
        images = f"images: {', '.join(present)}"
    return Diagnosis("docker", Level.OK, f"{health.detail}; {images}")


def _image_names(catalog: Catalog | None) -> list[str]:
    """`CASE:STACK` of every image that can be built, sorted."""
    names: list[str] = []
    if catalog is None:
        return names
    for stack in catalog.stacks.values():
        if stack.base:
            names += [f"{case}:{stack.name}" for case in stack.runs]
    return sorted(names)
