"""The resolved configuration of a run, before anything starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flagbench.errors import FlagbenchError
from flagbench.manifests.settings import config_errors
from flagbench.runs.launchers.folders import host_path, mount_folders
from flagbench.runs.request import LocalOptions, RunRequest, config_options
from flagbench_core import config
from flagbench_core.data_folders import find_folders


@dataclass(frozen=True)
class Described:
    """A resolved request."""

    config: Mapping[str, Any]
    """Everything that decides what is executed, as the record has it."""
    digest: str
    """`sha256:` of its canonical form."""


def describe(request: RunRequest, *, container: bool) -> Described:
    """The configuration that `request` resolves to. `container`: its run does not see this machine's /data.

    Raises FlagbenchError: usage (2) for what the case, its engine or the stack does not support, data (3) for missing
    folders.
    """
    options = request.options
    check_folders(options)
    default = None if container else "/data"
    folders = find_folders(request.case.raw, options.preset, options.data, options.weights, default)
    core_options = config_options(
        options,
        source=folders.source,
        weights=folders.weights is not None,
        resume=options.resume is not None,
        out=options.out is not None,
    )
    with config_errors():
        resolved = config.resolve(request.case.raw, request.stack.raw, core_options)
    return Described(resolved, config.digest(resolved))


def check_folders(options: LocalOptions) -> None:
    """Raise FlagbenchError where a folder to read is missing (data) or `--out` cannot be one (usage)."""
    mount_folders(options)
    if options.out is None:
        return
    path = host_path(options.out, "--out")
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    if not existing.is_dir():
        why = f"{existing} is not a folder"
    elif not os.access(existing, os.W_OK | os.X_OK):
        why = f"{existing} cannot be written to"
    else:
        return
    raise FlagbenchError(f"--out {options.out!r} cannot be used: {why}", remedy="give a folder where you may write")
