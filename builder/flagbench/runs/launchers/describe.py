"""Resolves the configuration of a run before anything starts, as the image will resolve it."""

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
    """The resolved configuration of a request."""

    config: Mapping[str, Any]
    """Everything that decides what is executed, in the format of a record's `config`."""
    digest: str
    """`sha256:` of the configuration's canonical form."""


def describe(request: RunRequest, *, container: bool) -> Described:
    """Resolve the configuration of `request`. `container`: whether it runs in one, which does not see this /data.

    Raises FlagbenchError: USAGE for options that the case, its engine or the stack does not support, DATA for
    missing folders.
    """
    options = request.options
    check_folders(options)
    default_data = None if container else "/data"
    folders = find_folders(request.case.raw, options.preset, options.data, options.weights, default_data)
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
    """Raise FlagbenchError if a folder to read is missing (DATA), or `--out` cannot be made or written to (USAGE)."""
    mount_folders(options)  # raises for the folders to read
    if options.out is None:
        return
    existing = host_path(options.out, "--out")
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        reason = f"{existing} is not a folder"
    elif not os.access(existing, os.W_OK | os.X_OK):
        reason = f"{existing} cannot be written to"
    else:
        return
    raise FlagbenchError(
        f"--out {options.out!r} cannot be used: {reason}", remedy="give a folder where you may write"
    )
