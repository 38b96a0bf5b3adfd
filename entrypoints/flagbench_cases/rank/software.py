"""Reads the versions and settings of torch and other libraries, for the record."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch

from flagbench_cases.shared import system
from flagbench_core import environment


def describe_software(kind: str) -> dict[str, Any]:
    """The fact `software`: versions of Python, torch and libraries, and settings of torch.

    `kind`: that of the device. On a `cpu`, the versions of the accelerator's libraries are None.
    """
    accelerator: dict[str, str | None] = {"cuda": None, "hip": None, "cudnn": None, "nccl": None}
    if kind == "cuda":
        accelerator = {
            "cuda": torch.version.cuda,
            "hip": torch.version.hip,
            "cudnn": str(torch.backends.cudnn.version()),
            "nccl": _nccl_version(),
        }
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        **accelerator,
        "packages": system.packages(),
        **system.lock(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "environment": environment.variables_for_record(os.environ),
    }


def _nccl_version() -> str | None:
    """The version of NCCL; None if this torch does not know it. Older torch gives a number instead of a tuple."""
    if not hasattr(torch.cuda, "nccl"):
        return None
    version = torch.cuda.nccl.version()
    if isinstance(version, tuple):
        return ".".join(str(part) for part in version)
    if version is None:
        return None
    return str(version)
