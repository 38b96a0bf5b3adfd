"""What a bundle says of the host: variables from a list, the machine, and the packages of this Python. No secrets."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping
from typing import Any

from flagbench_core import __version__
from flagbench_core.environment import published, secrets
from flagbench_core.redaction import redact


def environment(variables: Mapping[str, str]) -> dict[str, Any]:
    """The host that launched the runs, and those of its variables that a measurement may depend on."""
    known = secrets(variables)
    system = os.uname()
    return {
        "schema": "environment/v1",
        "flagbench": __version__,
        "python": platform.python_version(),
        "system": system.sysname,
        "kernel": system.release,
        "machine": system.machine,
        "processors": len(os.sched_getaffinity(0)),
        "variables": published(variables, lambda value: redact(value, known)),
    }


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
