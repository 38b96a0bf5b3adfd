"""Facts for a record: software versions, the machine as seen by the kernel, and the image that this runs in."""

from __future__ import annotations

import contextlib
import glob
import os
import platform
import sys
from typing import Any

from flagbench_core.host_name import host_name
from flagbench_core.process_limits import cgroup_folders

PACKAGES = (
    "numpy",
    "safetensors",
    "tokenizers",
    "transformers",
    "peft",
    "accelerate",
    "sentencepiece",
    "h5py",
    "deepspeed",
    "megatron-core",
    "flash-attn",
    "transformer-engine",
    "apex",
    "psutil",
    "nvidia-ml-py",
)
"""The Python packages whose versions a record has."""


def packages() -> dict[str, str]:
    """Versions of the installed packages among PACKAGES."""
    from importlib import metadata

    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _first_line(path: str, prefix: str = "") -> str | None:
    """The first line of a file that begins with `prefix`; None if there is none, or the file cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith(prefix):
                    return line.strip()
    except OSError:
        pass
    return None


def operating_system() -> str | None:
    """The name of the distribution."""
    line = _first_line("/etc/os-release", "PRETTY_NAME=")
    if line is None:
        return None
    return line.split("=", 1)[1].strip('"')


def processor_name() -> str:
    """The CPU model as reported by the kernel."""
    model = _first_line("/proc/cpuinfo", "model name")
    if model is not None:
        return model.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def memory_bytes() -> int:
    """Memory of the machine, bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def usable_memory_bytes() -> int:
    """Memory that this process may use, bytes: that of the machine, or the limit of its cgroup if that is lower."""
    sizes = [memory_bytes()]
    for folder in cgroup_folders("memory"):
        for name in ("memory.limit_in_bytes", "memory.max"):
            # A file is absent in the other version and at the root. Without a limit it contains `max`.
            with contextlib.suppress(OSError, ValueError), open(os.path.join(folder, name), encoding="ascii") as file:
                sizes.append(int(file.read()))
    return min(sizes)


def network_interfaces(root: str = "/sys/class") -> list[dict[str, Any]]:
    """Name, kind and rate of every interface except loopback, and of RDMA devices with an active port.

    The rate is absent if the driver does not report it. `root`: where sysfs has the classes of devices.
    """
    interfaces: list[dict[str, Any]] = []
    for folder in _subfolders(os.path.join(root, "net")):
        name = os.path.basename(folder)
        if name == "lo":
            continue
        speed = _first_line(os.path.join(folder, "speed"))
        nic = {"name": name, "kind": "ethernet"}
        if speed and not speed.startswith("-"):  # -1 if the link is down
            nic["rate"] = f"{speed} Mb/s"
        interfaces.append(nic)
    for folder in _subfolders(os.path.join(root, "infiniband")):
        states = [_first_line(path) for path in glob.glob(os.path.join(folder, "ports", "*", "state"))]
        if "4: ACTIVE" not in states:
            continue
        speed = _first_line(os.path.join(folder, "ports", "1", "rate"))
        nic = {"name": os.path.basename(folder), "kind": "infiniband"}
        if speed and not speed.startswith("-"):
            nic["rate"] = speed
        interfaces.append(nic)
    return interfaces


def _subfolders(folder: str) -> list[str]:
    """The folders in a folder, sorted; empty if it cannot be read."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    paths = [os.path.join(folder, name) for name in names]
    return [path for path in paths if os.path.isdir(path)]


def machine() -> dict[str, Any]:
    """This node as a record has it, without devices and their driver.

    Network addresses are omitted: they do not affect performance.
    """
    return {
        "host": host_name(),
        "kernel": platform.release(),
        "os": operating_system(),
        "cpu": {
            "model": processor_name(),
            "logical": os.cpu_count(),
            "usable": len(os.sched_getaffinity(0)),
        },
        "memory_bytes": memory_bytes(),
        "nics": network_interfaces(),
        "image": image(),
    }


def baked(variable: str) -> str | None:
    """A fact that the build stored in the image's environment; None if the build argument was not set."""
    return os.environ.get(variable) or None


def in_image() -> bool:
    """Whether this runs in a flagbench image: only images have a context digest, that of their source files."""
    return baked("FLAGBENCH_CONTEXT_DIGEST") is not None


def _reason_for_absence(variable: str, setter: str) -> str:
    """Why a variable is not set; `setter`: who sets it."""
    if not in_image():
        return "not running in an image"
    return f"{setter} did not set {variable}"


def image() -> dict[str, str | None]:
    """The image of this process, as a record has it.

    Its context digest is stored in it. Its own digest and id are known only to the launcher, which passes them on.
    """
    digest = baked("FLAGBENCH_IMAGE_DIGEST")
    reason = None
    if digest is None:
        reason = _reason_for_absence("FLAGBENCH_IMAGE_DIGEST", "the launcher")
    return {
        "context_digest": baked("FLAGBENCH_CONTEXT_DIGEST"),
        "digest": digest,
        "id": baked("FLAGBENCH_IMAGE_ID"),
        "reason": reason,
    }


def lock() -> dict[str, str | None]:
    """The digest of the lock file of this image's packages, or the reason for its absence."""
    digest = baked("FLAGBENCH_LOCK_DIGEST")
    facts = {"lock_digest": digest}
    if digest is None:
        facts["lock_digest_reason"] = _reason_for_absence("FLAGBENCH_LOCK_DIGEST", "the build")
    return facts


def commit() -> dict[str, str | None]:
    """The commit that flagbench was built from, or why it is unknown."""
    revision = baked("FLAGBENCH_COMMIT")
    facts = {"commit": revision}
    if revision is None:
        facts["commit_reason"] = _reason_for_absence("FLAGBENCH_COMMIT", "the build")
    return facts


def python_version() -> str:
    """The version of the parent's Python, for a record of a run whose ranks never started."""
    major, minor, micro = sys.version_info[:3]
    return f"{major}.{minor}.{micro}"
