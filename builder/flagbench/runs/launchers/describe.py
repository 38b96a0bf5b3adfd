"""The resolved configuration of a run, from the entrypoint of this installation, before anything starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import flagbench_core
from flagbench.errors import FlagbenchError
from flagbench.manifests.compile import compiled_files, find_stale
from flagbench.runs.launchers.folders import SYNTHETIC, host_path, mount_folders
from flagbench.runs.request import LocalOptions, RunRequest
from flagbench_core import python_module
from flagbench_core.exit_codes import ExitCode

HELP = "`flagbench run --help` shows every option and what it takes"
_OWN_HELP = "python -m flagbench_cases --help"
"""The help that the entrypoint's errors name; the user typed another command."""


@dataclass(frozen=True)
class Described:
    """A resolved request."""

    config: Mapping[str, Any]
    """Everything that decides what is executed, as the record has it."""
    digest: str
    """`sha256:` of its canonical form."""


def describe(request: RunRequest, *, container: bool) -> Described | None:
    """The configuration that `request` resolves to; None where the image side of these manifests is not installed.

    `container`: the run is in a container, which does not see this machine's /data. Imports no framework and
    touches no device.
    Raises FlagbenchError: usage (2) for unknown or contradictory options, or for manifests that a run in this Python
    would not see; data (3) for missing folders.
    """
    check_folders(request.options)
    if find_spec("flagbench_cases") is None:
        return None
    package = Path(flagbench_core.__file__).parents[1] / "flagbench_cases"
    if stale := find_stale(package, compiled_files([request.case], [request.stack]), ()):
        if container:
            return None
        raise FlagbenchError(
            f"this Python would run other manifests than are here: {', '.join(stale)} of {package} differ from them",
            remedy="run `flagbench manifests compile` in its checkout, or use --via docker with a new image",
        )
    if container and request.options.data is None and request.options.preset != "tiny":
        # What the reference presets fall back to.
        request = replace(request, options=replace(request.options, data=SYNTHETIC))
    command = [sys.executable, *python_module.options("flagbench_cases"), *request.arguments(), "--describe"]
    environment = dict(os.environ, FLAGBENCH_STACK=request.stack.name)
    ended = subprocess.run(command, env=environment, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    try:
        answer = json.loads(ended.stdout)
    except ValueError:
        answer = None
    if ended.returncode == 0 and isinstance(answer, dict) and "config" in answer:
        return Described(answer["config"], answer["config_digest"])
    raise _refusal(ended, answer)


def _refusal(ended: subprocess.CompletedProcess[bytes], answer: Any) -> FlagbenchError:
    """The entrypoint's usage error, as one of the command that was typed."""
    status = answer.get("status") if isinstance(answer, dict) else None
    if not isinstance(status, dict):
        # On other nodes than node 0 it prints no record.
        lines = ended.stderr.decode("utf-8", "replace").splitlines()
        found = {
            key: line[len(key) + 2 :] for line in lines for key in ("error", "fix") if line.startswith(f"{key}: ")
        }
        status = {"reason": found.get("error"), "remedy": found.get("fix")}
    if ended.returncode not in set(ExitCode) or not status.get("reason"):
        output = ended.stderr.decode("utf-8", "replace").strip().splitlines() or ["nothing"]
        return FlagbenchError(
            f"the entrypoint could not resolve this run: it ended with {ended.returncode} and printed {output[-1]!r}",
            remedy="run `flagbench doctor`, and report this with what it prints",
            code=ExitCode.BUG,
        )
    reason = str(status["reason"]).removeprefix("argument ")
    remedy = str(status.get("remedy") or HELP)
    return FlagbenchError(reason, remedy=HELP if _OWN_HELP in remedy else remedy, code=ExitCode(ended.returncode))


def check_folders(options: LocalOptions) -> None:
    """Raise FlagbenchError where a folder to read is missing (data) or `--out` cannot be one (usage)."""
    mount_folders(options)
    if options.out is None:
        return
    path = host_path(options.out, "--out")
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    if not there.is_dir():
        why = f"{there} is not a folder"
    elif not os.access(there, os.W_OK | os.X_OK):
        why = f"{there} cannot be written to"
    else:
        return
    raise FlagbenchError(f"--out {options.out!r} cannot be used: {why}", remedy="give a folder where you may write")
