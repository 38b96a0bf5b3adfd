"""What a bundle says of the host: variables from a list, the machine, and the packages of this Python. No secrets."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterable, Mapping
from typing import Any

from flagbench_core import __version__
from flagbench_core.redaction import REDACTED, is_secret, is_secret_name, redact, url_secrets

_NAMES = frozenset(
    (
        *("LANG", "LC_ALL", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHASHSEED", "TMPDIR", "TZ"),
        *("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_TF32_OVERRIDE", "TOKENIZERS_PARALLELISM"),
        *("DOCKER_HOST", "SLURM_JOB_ID", "FORCE_ACTIVATE_WAIT", "ISU_FASTMODEL", "SET_DEVICE_NUMA_PREFERRED"),
    )
)
_PREFIXES = (
    *("CUBLAS_", "CUDA_", "CUDNN_", "DS_", "FI_", "GLOO_", "GOMP_", "KMP_", "MACA_", "MALLOC_", "MCCL_", "MKL_"),
    *("NCCL_", "NVTE_", "OMP_", "OPENBLAS_", "PYTORCH_", "TORCH_", "TRITON_", "UCX_"),
)
"""Of libraries whose speed they change; anything else is nobody's business."""
_SHORTEST_SECRET = 6
"""A shorter one would be found in the middle of words."""


def environment(variables: Mapping[str, str]) -> dict[str, Any]:
    """The host that launched the runs, and those of its variables that a measurement may depend on."""
    known = secrets(variables)
    chosen = {name: value for name, value in variables.items() if name in _NAMES or name.startswith(_PREFIXES)}
    system = os.uname()
    return {
        "schema": "environment/v1",
        "flagbench": __version__,
        "python": platform.python_version(),
        "system": system.sysname,
        "kernel": system.release,
        "machine": system.machine,
        "processors": len(os.sched_getaffinity(0)),
        "variables": {
            name: REDACTED if is_secret(name, value) else redact(value, known)
            for name, value in sorted(chosen.items())
        },
    }


def secrets(variables: Mapping[str, str]) -> list[str]:
    """The values of variables that hold a secret, and the users and passwords in others."""
    found = {value for name, value in variables.items() if is_secret_name(name)}
    found.update(secret for value in variables.values() if "://" in value for secret in url_secrets(value))
    return sorted(secret for secret in found if len(secret) >= _SHORTEST_SECRET)


def packages() -> dict[str, Any]:
    """The distributions that are installed in this Python, by name: what a run without a container consists of."""
    found: dict[str, str] = {}
    for entry in importlib.metadata.distributions():
        name = entry.metadata["Name"]
        if isinstance(name, str) and name:
            found.setdefault(name, entry.version)
    listed = [{"name": name, "version": found[name]} for name in sorted(found, key=str.lower)]
    return {"schema": "packages/v1", "python": platform.python_version(), "packages": listed}


def cleaned(text: str, variables: Mapping[str, str]) -> str:
    """A log without credentials."""
    return redact(text, secrets(variables))


def unlike(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """The paths of the fields in which two JSON objects differ, sorted."""
    return sorted({*_unlike(first, second, "")})


def _unlike(first: Any, second: Any, path: str) -> Iterable[str]:
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for name in {*first, *second}:
            yield from _unlike(first.get(name), second.get(name), f"{path}.{name}" if path else name)
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for number, (one, other) in enumerate(zip(first, second, strict=True)):
            yield from _unlike(one, other, f"{path}[{number}]")
    elif first != second:
        yield path
