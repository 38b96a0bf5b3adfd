"""What ran: software versions from the running process, and the machine as the kernel shows it."""

import os
import platform
import sys
from typing import Any, Dict, List, Optional

PACKAGES = (
    "numpy",
    "safetensors",
    "tokenizers",
    "transformers",
    "deepspeed",
    "flash-attn",
    "psutil",
    "nvidia-ml-py",
)


def packages() -> Dict[str, str]:
    """Versions of the installed packages a case may use."""
    from importlib import metadata

    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def software(kind: str, precision: str) -> Dict[str, Any]:
    """Framework and library versions, read from torch itself."""
    import torch

    cuda = kind == "cuda"
    nccl = torch.cuda.nccl.version() if cuda and hasattr(torch.cuda, "nccl") else None
    if isinstance(nccl, tuple):
        nccl = ".".join(str(part) for part in nccl)
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda if cuda else None,
        "cudnn": str(torch.backends.cudnn.version()) if cuda else None,
        "nccl": None if nccl is None else str(nccl),
        "packages": packages(),
        "lock_digest": os.environ.get("FLAGBENCH_LOCK_DIGEST"),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
    }


def _first_line(path: str, prefix: str = "") -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith(prefix):
                    return line.strip()
    except OSError:
        pass
    return None


def operating_system() -> Optional[str]:
    """The distribution's own name for itself."""
    line = _first_line("/etc/os-release", "PRETTY_NAME=")
    return line.split("=", 1)[1].strip('"') if line else None


def driver() -> Optional[str]:
    """The version of the loaded NVIDIA kernel module, where there is one."""
    line = _first_line("/proc/driver/nvidia/version", "NVRM version:")
    if line is None:
        return None
    return next((word for word in line.split() if word.replace(".", "").isdigit() and "." in word), None)


def network_interfaces() -> List[Dict[str, Any]]:
    """Name, state and speed (Mb/s, where the driver says) of every interface but loopback, and InfiniBand devices."""
    found: List[Dict[str, Any]] = []
    for kind, folder, rate in (
        ("ethernet", "/sys/class/net", "speed"),
        ("infiniband", "/sys/class/infiniband", "ports/1/rate"),
    ):
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for name in names:
            if name == "lo" or not os.path.isdir(os.path.join(folder, name)):
                continue
            nic = {"name": name, "kind": kind}
            speed = _first_line(os.path.join(folder, name, rate))
            if speed and not speed.startswith("-"):
                nic["rate"] = speed if kind == "infiniband" else "%s Mb/s" % speed
            found.append(nic)
    return found


def machine() -> Dict[str, Any]:
    """This node, without its devices; network addresses are left out, they say nothing about speed."""
    try:
        memory: Optional[int] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        memory = None
    model = _first_line("/proc/cpuinfo", "model name")
    return {
        "driver": driver(),
        "kernel": platform.release(),
        "os": operating_system(),
        "cpu": {
            "model": model.split(":", 1)[1].strip() if model else platform.machine(),
            "logical": os.cpu_count(),
        },
        "memory_bytes": memory,
        "nics": network_interfaces(),
        "image": image(),
    }


def image() -> Dict[str, Optional[str]]:
    """Which image this is: its context digest is baked in, its own digest only the launcher can know."""
    context, own = os.environ.get("FLAGBENCH_CONTEXT_DIGEST"), os.environ.get("FLAGBENCH_IMAGE_DIGEST")
    reason = None
    if own is None:
        reason = "not run from an image" if context is None else "the launcher did not set FLAGBENCH_IMAGE_DIGEST"
    return {"context_digest": context, "digest": own, "reason": reason}


def python_version() -> str:
    """Of the parent, for a record whose ranks never came up."""
    return "%d.%d.%d" % sys.version_info[:3]
