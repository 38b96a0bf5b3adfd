"""Software versions of the running process, and the machine as seen by the kernel."""

from __future__ import annotations

import contextlib
import glob
import os
import platform
import socket
import sys
from typing import Any

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
    """Memory of the machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def usable_memory_bytes() -> int:
    """Memory of the machine, or the limit of its cgroup (version 1 or 2), as in a container, if that is lower."""
    sizes = [memory_bytes()]
    for folder in cgroup_folders("memory"):
        for name in ("memory.limit_in_bytes", "memory.max"):
            # Absent in the other version, and at the root; `max` where there is no limit.
            with contextlib.suppress(OSError, ValueError), open(os.path.join(folder, name), encoding="ascii") as file:
                sizes.append(int(file.read()))
    return min(sizes)


def network_interfaces(root: str = "/sys/class") -> list[dict[str, Any]]:
    """Name and rate (if the driver reports it) of every interface except loopback, and of RDMA devices whose port is
    active."""
    interfaces: list[dict[str, Any]] = []
    for kind, folder, rate in (
        ("ethernet", os.path.join(root, "net"), "speed"),
        ("infiniband", os.path.join(root, "infiniband"), "ports/1/rate"),
    ):
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for name in names:
            if name == "lo" or not os.path.isdir(os.path.join(folder, name)):
                continue
            states = map(_first_line, glob.glob(os.path.join(folder, name, "ports", "*", "state")))
            if kind == "infiniband" and "4: ACTIVE" not in states:
                continue
            nic = {"name": name, "kind": kind}
            speed = _first_line(os.path.join(folder, name, rate))
            if speed and not speed.startswith("-"):
                nic["rate"] = speed
                if kind == "ethernet":
                    nic["rate"] += " Mb/s"
            interfaces.append(nic)
    return interfaces


def host_name() -> str:
    """The name of this machine. That of a container changes, so its launcher sets FLAGBENCH_HOST."""
    return os.environ.get("FLAGBENCH_HOST") or socket.gethostname()


def machine() -> dict[str, Any]:
    """This node, without devices and their driver. Network addresses are omitted: they do not affect performance."""
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
    """Whether this runs in a flagbench image: only those have a context digest."""
    return baked("FLAGBENCH_CONTEXT_DIGEST") is not None


def _why_not(variable: str, setter: str) -> str:
    if not in_image():
        return "not running in an image"
    return f"{setter} did not set {variable}"


def image() -> dict[str, str | None]:
    """The image: its context digest is stored in it, its own digests are known only to the launcher."""
    digest = baked("FLAGBENCH_IMAGE_DIGEST")
    reason = None
    if digest is None:
        reason = _why_not("FLAGBENCH_IMAGE_DIGEST", "the launcher")
    return {
        "context_digest": baked("FLAGBENCH_CONTEXT_DIGEST"),
        "digest": digest,
        "id": baked("FLAGBENCH_IMAGE_ID"),
        "reason": reason,
    }


def lock() -> dict[str, str | None]:
    """The digest of the lock of this image's packages, or the reason for its absence."""
    digest = baked("FLAGBENCH_LOCK_DIGEST")
    facts = {"lock_digest": digest}
    if digest is None:
        facts["lock_digest_reason"] = _why_not("FLAGBENCH_LOCK_DIGEST", "the build")
    return facts


def commit() -> dict[str, str | None]:
    """The commit that flagbench was built from, or why it is unknown."""
    revision = baked("FLAGBENCH_COMMIT")
    facts = {"commit": revision}
    if revision is None:
        facts["commit_reason"] = _why_not("FLAGBENCH_COMMIT", "the build")
    return facts


def python_version() -> str:
    """The version of the parent's Python, for a record of a run whose ranks never started."""
    major, minor, micro = sys.version_info[:3]
    return f"{major}.{minor}.{micro}"
