"""Versions and settings of the framework, read from torch."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch

from flagbench_cases.shared import system
from flagbench_core import environment


def software(kind: str, precision: str) -> dict[str, Any]:
    """Framework and library versions, and settings of torch, for the record."""
    cuda = kind == "cuda"
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda if cuda else None,
        "hip": torch.version.hip if cuda else None,
        "cudnn": str(torch.backends.cudnn.version()) if cuda else None,
        "nccl": _nccl_version() if cuda else None,
        "packages": system.packages(),
        **system.lock(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "environment": environment.variables_for_record(os.environ),
    }


def _nccl_version() -> str | None:
    if not hasattr(torch.cuda, "nccl"):
        return None
    version = torch.cuda.nccl.version()
    if isinstance(version, tuple):
        return ".".join(str(part) for part in version)
    if version is None:
        return None
    return str(version)
