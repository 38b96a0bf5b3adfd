"""`.ci/containers engine`, with stand-ins for the programs that it starts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / ".ci" / "containers"
PROGRAMS = {
    "docker": """
case $1 in
version) ;;
image) [ -e "$STATE/base" ] ;;
import) cat >/dev/null; echo "$@" >>"$STATE/imports"; touch "$STATE/base" ;;
esac
""",
    "dockerd": "exit 1",
    "debootstrap": 'mkdir -p "$3/var/cache/apt/archives" "$3/var/lib/apt/lists"; touch "$3/file"',
}


def test_two_that_start_together_make_one_base(tmp_path: Path) -> None:
    programs, state = tmp_path / "programs", tmp_path / "state"
    programs.mkdir()
    state.mkdir()
    for name, body in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "STATE": str(state), "TMPDIR": str(tmp_path)}
    folders = [tmp_path / "one", tmp_path / "two"]
    started = [subprocess.Popen([SCRIPT, "engine", folder], env=environment) for folder in folders]
    assert [process.wait() for process in started] == [0, 0]
    assert len((state / "imports").read_text(encoding="utf-8").splitlines()) == 1
    assert all("FLAGBENCH_BASE" in (folder / "env").read_text(encoding="utf-8") for folder in folders)
