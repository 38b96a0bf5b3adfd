"""Checks what this machine needs for running flagbench; each finding has a remedy."""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from flagbench._version import __version__
from flagbench.catalog.load import load_catalog
from flagbench.engines import open_engine
from flagbench.errors import FlagbenchError
from flagbench.redaction import redact
from flagbench.stores import FolderBlobs, open_store

GIB = 2**30
_NATIVE_REMEDY = "for runs without a container: pip install 'flagbench[cases]'"
_MOST_LEFTOVERS = 4
_PROC_REMEDY = "mount /proc, which runs read too"
_DISK_REMEDY = "name folders on a disk with free space: TMPDIR for a run's own files, --store for its record"
# Import name of what a case needs, and the distribution that brings it.
_NATIVE = {
    "torch": "torch",
    "numpy": "numpy",
    "psutil": "psutil",
    "pynvml": "nvidia-ml-py",
    "tokenizers": "tokenizers",
    "safetensors": "safetensors",
}


class Level(str, Enum):
    """Whether a finding prevents nothing, some runs, or every run."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    level: Level
    detail: str
    remedy: str | None = None


def examine(store_url: str | None = None) -> list[Finding]:
    """Run every check. Imports no framework and leaves nothing behind."""
    return [
        Finding("python", Level.OK, f"{platform.python_version()} ({platform.machine()})"),
        Finding("flagbench", Level.OK, __version__),
        manifests(),
        store(store_url),
        *native_packages(case_imports()),
        processors(),
        memory(),
        *disks(store_url),
        leftovers(),
        accelerator(),
        kubernetes(),
        engine(docker(os.environ)),
    ]


def manifests(root: Path | None = None) -> Finding:
    """Whether the manifests are found and valid."""
    try:
        catalog = load_catalog(root)
    except FlagbenchError as error:
        # The number of problems and the first one; `flagbench list` shows the others.
        detail = " ".join(line.strip() for line in error.message.splitlines()[:2])
        return Finding("manifests", Level.FAIL, detail, error.remedy)
    counts = f"{len(catalog.cases)} cases, {len(catalog.stacks)} stacks, {len(catalog.claims)} claims"
    return Finding("manifests", Level.OK, f"{catalog.root}: {counts}")


def store(url: str | None) -> Finding:
    """Whether records can be stored."""
    try:
        health = open_store(url).health()
    except FlagbenchError as error:
        return Finding("store", Level.FAIL, error.message, error.remedy)
    return Finding("store", Level.OK if health.ok else Level.FAIL, health.detail, health.remedy)


def case_imports(root: Path | None = None) -> dict[str, str]:
    """Modules that only some cases import, each with the names of these cases, separated by commas."""
    try:
        cases = load_catalog(root, claims=False).cases.values()
    except FlagbenchError:  # it is a finding of its own
        return {}
    modules = sorted({module for case in cases for module in case.raw.get("imports", ())})
    return {
        module: ", ".join(case.name for case in cases if module in case.raw.get("imports", ())) for module in modules
    }


def native_packages(case_imports: Mapping[str, str]) -> Iterator[Finding]:
    """Packages that a run without a container imports: looked up only, because importing torch takes seconds."""
    for module, distribution in {**_NATIVE, **{module: module.replace("_", "-") for module in case_imports}}.items():
        if importlib.util.find_spec(module) is None:
            wanted = f", and {case_imports[module]} imports it" if module in case_imports else ""
            yield Finding(module, Level.WARN, f"not installed{wanted}", _NATIVE_REMEDY)
            continue
        try:
            version = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            version = "installed, version unknown"
        yield Finding(module, Level.OK, version)


def processors() -> Finding:
    """Logical CPUs this process may use; a container's quota may be lower than the machine's count."""
    usable = len(os.sched_getaffinity(0))
    return Finding("cpus", Level.OK, f"{usable} of {os.cpu_count()} usable")


def memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> Finding:
    """Available memory, and the control group's limit (version 2, else 1) if it is lower."""
    try:
        found = re.findall(r"^(MemTotal|MemAvailable):\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    except OSError as error:
        return Finding("memory", Level.WARN, f"unknown: {meminfo}: {error.strerror}", _PROC_REMEDY)
    amounts = {name: int(kib) * 1024 for name, kib in found}
    if len(amounts) != 2:
        return Finding("memory", Level.WARN, f"unknown: {meminfo} has no MemTotal and MemAvailable", _PROC_REMEDY)
    detail = f"{amounts['MemAvailable'] / GIB:.1f} of {amounts['MemTotal'] / GIB:.1f} GiB available"
    limits = [_number(cgroup / name) for name in ("memory.max", "memory/memory.limit_in_bytes")]
    lower = [limit for limit in limits if limit is not None and limit < amounts["MemTotal"]]
    if lower:
        detail += f"; limited to {min(lower) / GIB:.1f} GiB"
    return Finding("memory", Level.OK, detail)


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def disks(store_url: str | None) -> Iterator[Finding]:
    """The disks that a run writes to: its own files into the temporary folder, its record into the store."""
    yield disk("temporary files", lambda: Path(tempfile.gettempdir()))
    try:
        blobs = open_store(store_url).blobs
    except FlagbenchError:  # it is a finding of its own
        return
    if isinstance(blobs, FolderBlobs):
        folders = (blobs.root, *blobs.root.parents)
        yield disk("disk of the store", lambda: next(folder for folder in folders if folder.exists()))


def disk(name: str, find: Callable[[], Path], least: int = GIB) -> Finding:
    """Free space on the disk of a folder; a run needs well under `least` bytes."""
    try:
        folder = find()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding(name, Level.WARN, f"unknown: {error}", _DISK_REMEDY)
    detail = f"{free / GIB:.1f} GiB free at {folder}"
    if free < least:
        return Finding(name, Level.WARN, detail, _DISK_REMEDY)
    return Finding(name, Level.OK, detail)


def leftovers(folder: Path | None = None) -> Finding:
    """Folders that killed runs of this user left: their lock is no longer held by a process.

    `folder`: where to look; default: the temporary folder.
    """
    try:
        folder = folder or Path(tempfile.gettempdir())
    except OSError as error:  # no temporary folder can be written to
        return Finding("leftovers", Level.WARN, f"unknown: {error}", _DISK_REMEDY)
    found = sorted(path for path in _listed(folder) if _is_left(path))
    if not found:
        return Finding("leftovers", Level.OK, f"none in {folder}")
    shown = ", ".join(path.name for path in found[:_MOST_LEFTOVERS]) + (", ..." * (len(found) > _MOST_LEFTOVERS))
    detail = f"{len(found)} left by killed runs in {folder}: {shown}"
    return Finding("leftovers", Level.WARN, detail, "the next run with the same TMPDIR removes them")


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.glob("flagbench-*"))
    except OSError:
        return []


def _is_left(folder: Path) -> bool:
    """The image side's rule (`scratch`): a run holds the lock exclusively; this takes it briefly, shared."""
    try:
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return False
        lock = os.open(folder / "owner.lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return stat.S_ISREG(os.fstat(lock).st_mode)
    except OSError:
        return False
    finally:
        os.close(lock)


def accelerator(driver: Path = Path("/proc/driver/nvidia/version")) -> Finding:
    """The accelerator's driver, read from the kernel, because a vendor's tool may hang."""
    try:
        text = driver.read_text()
    except OSError:
        text = ""
    version = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    if version:
        return Finding("accelerator", Level.OK, f"NVIDIA driver {version[1]}")
    for tool in ("nvidia-smi", "mx-smi"):
        if shutil.which(tool):
            return Finding("accelerator", Level.OK, f"{tool} found, driver version unknown")
    remedy = "images of the cpu stack run here; for others install the accelerator's driver"
    return Finding("accelerator", Level.WARN, "no driver found", remedy)


def docker(environment: Mapping[str, str], default: Path = Path("/var/run/docker.sock")) -> Finding:
    """Whether a container engine's socket exists and is accessible; a remote engine is not contacted."""
    host = environment.get("DOCKER_HOST", "")
    if host and not host.startswith("unix://"):
        return Finding("docker", Level.OK, f"DOCKER_HOST={redact(host)} (not contacted)")
    socket = Path(host.removeprefix("unix://")) if host else default
    try:
        is_socket = stat.S_ISSOCK(socket.stat().st_mode)
    except OSError:
        is_socket = False
    if not is_socket:
        remedy = "start the container engine or set DOCKER_HOST; --via native runs without one"
        return Finding("docker", Level.WARN, f"no socket at {socket}", remedy)
    if not os.access(socket, os.R_OK | os.W_OK):
        remedy = "join the socket's group (usually docker) and log in again; --via native needs no engine"
        return Finding("docker", Level.WARN, f"{socket} may not be used by this user", remedy)
    return Finding("docker", Level.OK, f"socket {socket}")


def engine(socket: Finding, root: Path | None = None) -> Finding:
    """The version of the engine behind a usable socket, and which of the catalog's images it has."""
    if socket.level is not Level.OK:
        return socket
    try:
        with closing(open_engine()) as found:
            there = [name for name in _image_names(root) if found.inspect(f"flagbench/{name}") is not None]
            health = found.health()
    except FlagbenchError as error:
        return Finding("docker", Level.WARN, error.message, f"{error.remedy}; --via native needs no engine")
    have = f"images: {', '.join(there)}" if there else "no image of a case, `flagbench build` makes them"
    return Finding("docker", Level.OK, f"{health}; {have}")


def kubernetes() -> Finding:
    """Whether jobs can be checked by a server and submitted; kubectl is not started, and no server contacted."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        remedy = "needed to check and to submit jobs, not to print them"
        return Finding("kubernetes", Level.WARN, "kubectl is not installed", remedy)
    return Finding("kubernetes", Level.OK, f"{kubectl} (no server contacted)")


def _image_names(root: Path | None) -> list[str]:
    """Every `case:stack` by the stack's own name; empty if the manifests are broken, which is its own finding."""
    try:
        catalog = load_catalog(root, claims=False)
    except FlagbenchError:
        return []
    return sorted(f"{case}:{stack.name}" for stack in catalog.stacks.values() for case in stack.runs)
