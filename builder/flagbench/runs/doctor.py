"""The checks of `flagbench doctor`: whether this machine has what flagbench needs to run.

Each check returns a `Diagnosis`: a name, a level, a detail and, unless all is well, a remedy.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from flagbench.errors import FlagbenchError
from flagbench.images.docker import open_engine
from flagbench.machine.devices import this_machine
from flagbench.machine.diagnosis import (
    DISK_REMEDY,
    Diagnosis,
    Level,
    check_device_health,
    check_disk,
    check_disturbances,
    check_lost_devices,
    check_memory,
)
from flagbench.machine.health import MachineHealth
from flagbench.machine.look import MachineFacts, look_at_machine
from flagbench.manifests.load import load_catalog
from flagbench.manifests.lookup import missing_module, native_remedy
from flagbench.manifests.model import Catalog
from flagbench.records.folder_blobs import FolderBlobs
from flagbench.records.store import open_store
from flagbench.records.waiting import find_waiting, unsent_folder
from flagbench.runs.launchers.docker import DockerLauncher
from flagbench.runs.launchers.native import NEEDED, NativeLauncher
from flagbench_core import __version__, scratch

_NATIVE_REMEDY = "for runs without a container, in the checkout: pip install -e '.[cases]'"
_TORCH_REMEDY = "for native runs on the accelerator, install the build that pytorch.org names, with --force-reinstall"
_DRIVER_REMEDY = "images of the cpu stack run here; for others install the accelerator's driver"
_MOST_LEFTOVERS = 4
"""Leftover folders that are named; more are only counted."""
_DISTRIBUTIONS = {"pynvml": "nvidia-ml-py"}
"""The name of the distribution that installs a module, if it is not the module's."""


@dataclass(frozen=True)
class Examination:
    """The findings of `flagbench doctor`."""

    findings: list[Diagnosis]
    health: MachineHealth
    """The health of the devices that a run would use: errors, temperatures and states that their driver reports."""


def examine(store_url: str | None = None) -> Examination:
    """Run every check. No framework is imported, and no file is left behind.

    `store_url`: the store to check; None: the default one.
    """
    manifests = check_manifests()
    catalog = manifests.catalog
    facts = look_at_machine(health=True)
    health = facts.health or MachineHealth()
    findings = [
        Diagnosis("python", Level.OK, f"{platform.python_version()} ({platform.machine()})"),
        Diagnosis("flagbench", Level.OK, __version__),
        manifests.finding,
        check_store(store_url),
        *check_native_packages(catalog),
        # A container's quota may be lower than the machine's count.
        Diagnosis("cpus", Level.OK, f"{facts.processors} of {os.cpu_count()} usable"),
        check_memory(),
        *check_disks(store_url),
        find_leftovers(),
        find_unsent(),
        *check_disturbances(facts),
        *check_lost_devices(facts),
        *check_device_health(health),
        describe_accelerator(facts),
        NativeLauncher().health(),
        check_docker(catalog),
    ]
    return Examination(findings, health)


class ManifestCheck(NamedTuple):
    """The finding about the manifests, and the catalog that was loaded from them."""

    finding: Diagnosis
    catalog: Catalog | None
    """None if the manifests cannot be loaded."""


def check_manifests() -> ManifestCheck:
    """Load the manifests. The finding has the number of cases, stacks and claims (published results)."""
    try:
        catalog = load_catalog()
    except FlagbenchError as error:
        # The first two lines are the number of problems and the first one; `flagbench list` shows the others.
        detail = " ".join(line.strip() for line in error.message.splitlines()[:2])
        return ManifestCheck(Diagnosis("manifests", Level.FAIL, detail, error.remedy), None)
    counts = f"{len(catalog.cases)} cases, {len(catalog.stacks)} stacks, {len(catalog.claims)} claims"
    return ManifestCheck(Diagnosis("manifests", Level.OK, f"{catalog.root}: {counts}"), catalog)


def check_store(url: str | None) -> Diagnosis:
    """Check that the store accepts records."""
    try:
        health = open_store(url).health()
    except FlagbenchError as error:
        return Diagnosis("store", Level.FAIL, error.message, error.remedy)
    level = Level.OK if health.ok else Level.FAIL
    return Diagnosis("store", level, health.detail, health.remedy)


def check_native_packages(catalog: Catalog | None) -> Iterator[Diagnosis]:
    """Check that the packages that a native run imports are installed. They are not imported: torch takes seconds."""
    # `NEEDED` begins with flagbench_cases, which is no package; NativeLauncher.health reports if it is missing.
    cases_by_module: dict[str, list[str]] = {module: [] for module in (*NEEDED[1:], "pynvml")}
    if catalog is not None:
        for case in catalog.cases.values():
            for module in sorted(case.imports):
                cases_by_module.setdefault(module, []).append(case.name)
    for module, cases in cases_by_module.items():
        yield _check_package(module, cases, catalog)


def _check_package(module: str, cases: Sequence[str], catalog: Catalog | None) -> Diagnosis:
    """Check that a module is installed. `cases`: the names of those that import it, if not all do."""
    if importlib.util.find_spec(module) is None:
        detail = "not installed"
        remedy = _NATIVE_REMEDY
        if cases and catalog is not None:
            detail += f"; imported by {', '.join(cases)}"
            remedy = native_remedy(f"{cases[0]}:cpu", module, catalog.stacks["cpu"]) or _NATIVE_REMEDY
        return Diagnosis(module, Level.WARN, detail, remedy)
    distribution = _DISTRIBUTIONS.get(module, module.replace("_", "-"))
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        version = "installed, version unknown"
    if module == "torch" and version.endswith("+cpu") and this_machine().devices:
        return Diagnosis(module, Level.WARN, f"{version}, a build for processors alone", _TORCH_REMEDY)
    return Diagnosis(module, Level.OK, version)


def check_disks(store_url: str | None) -> Iterator[Diagnosis]:
    """Check the disks that a run writes to: that of the temporary folder, and that of the store if it is a folder."""
    yield check_disk("temporary files")
    try:
        blobs = open_store(store_url).blobs
    except FlagbenchError:  # `check_store` reports it
        return
    if isinstance(blobs, FolderBlobs):
        # The folder of the store need not exist yet.
        folder = blobs.root
        while not os.access(folder, os.F_OK):
            folder = folder.parent
        yield check_disk("disk of the store", folder)


def find_leftovers(folder: Path | None = None) -> Diagnosis:
    """Find folders that killed runs of this user left in `folder`, by default the temporary one."""
    try:
        folder = folder or Path(tempfile.gettempdir())
        names = sorted(path.name for path in folder.glob("flagbench-*") if _is_leftover(path))
    except OSError as error:
        return Diagnosis("leftovers", Level.WARN, f"unknown: {error}", DISK_REMEDY)
    if not names:
        return Diagnosis("leftovers", Level.OK, f"none in {folder}")
    detail = f"{len(names)} left by killed runs in {folder}: {', '.join(names[:_MOST_LEFTOVERS])}"
    if len(names) > _MOST_LEFTOVERS:
        detail += ", ..."
    return Diagnosis("leftovers", Level.WARN, detail, "the next run with the same TMPDIR removes them")


def find_unsent() -> Diagnosis:
    """Find records and bundles of this user's runs that could not be stored."""
    try:
        count = len(find_waiting(unsent_folder()))
    except OSError as error:
        remedy = "make the folder readable for you"
        return Diagnosis("unsent", Level.WARN, f"unknown: {error}", remedy)
    if not count:
        return Diagnosis("unsent", Level.OK, f"nothing waits in {unsent_folder()}")
    detail = f"records and bundles that could not be stored wait in {unsent_folder()}: {count}"
    return Diagnosis("unsent", Level.WARN, detail, "`flagbench results push` stores them")


def _is_leftover(folder: Path) -> bool:
    """Whether a run's folder is one of a run that no longer exists: no process holds its lock."""
    lock = scratch.lock_leftover(str(folder))
    if lock is not None:
        os.close(lock)
    return lock is not None


def describe_accelerator(facts: MachineFacts) -> Diagnosis:
    """A finding on the accelerators that their vendor's tool shows, and their driver."""
    machine = facts.accelerators
    if machine.devices:
        return Diagnosis("accelerator", Level.OK, ", driver ".join([machine.described, *facts.drivers]))
    if machine.problem:
        return Diagnosis("accelerator", Level.WARN, machine.problem, machine.remedy or _DRIVER_REMEDY)
    return Diagnosis("accelerator", Level.WARN, "none was found", _DRIVER_REMEDY)


def check_docker(catalog: Catalog | None) -> Diagnosis:
    """A finding on the version of the container engine, and on which of the catalog's images it has."""
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
        for name in stack.runs:
            if stack.base and missing_module(catalog.cases[name], stack) is None:
                names.append(f"{name}:{stack.name}")
    return sorted(names)
