"""`flagbench list` shows what there is, to a person and to a script."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flagbench.errors import ExitCode

Flagbench = Callable[..., Any]


def test_tables_are_aligned_where_there_is_no_terminal(flagbench: Flagbench) -> None:
    text = flagbench("list").out
    assert [line for line in text.splitlines() if " " not in line] == ["cases", "", "stacks", "", "claims"]
    assert "\x1b" not in text
    header, *rows = flagbench("list claims").out.splitlines()
    assert [header, *rows] == text.splitlines()[-len(rows) - 1 :]
    column = header.index("PUBLISHED")
    assert rows[0].startswith("distilbert/a100-1x8-fp32 ")
    assert [row[column:] for row in rows][:2] == ["p_core 1942.6 samples/s", "p_core 2181.0 samples/s"]
    k100 = next(row for row in rows if row.startswith("glm/k100-1x8-fp16-bs8 "))
    assert k100[column:] == "no p_core, only acc, mem_peak"
    assert k100[:column].split()[-1] == "none"


def test_json_has_the_kinds_asked_for(flagbench: Flagbench) -> None:
    everything = flagbench("list --json").json
    assert list(everything) == ["cases", "stacks", "claims"]
    assert everything["claims"][0]["metrics"][3] == {
        "name": "p_core",
        "value": 1942.6,
        "unit": "samples/s",
        "scope": "job",
        "of": None,
        "printed": None,
        "source": None,
    }
    by_id = {claim["id"]: claim for claim in everything["claims"]}
    assert by_id["glm/a100-2x8-fp32-bs8"]["metrics"][0]["source"]["commit"] == "269c1fd5"
    r300 = by_id["glm/r300-1x8-fp32-bs5"]
    assert (r300["stack"], r300["metrics"][0]["printed"]) == (None, "80.52%")
    assert "no stack for Kunlunxin's R300" in r300["no_stack"]
    assert flagbench("list stacks --json").json == {"stacks": everything["stacks"]}


# libyaml's parser recurses in C, and would end the process.
@pytest.mark.parametrize(
    "content", [None, "schema: case/v1\n", *(opening * 100_000 for opening in ("[", "{a: ", "- "))]
)
def test_a_broken_manifest_is_named(manifests: Path, monkeypatch: pytest.MonkeyPatch, content: str | None) -> None:
    path = manifests / "cases" / "broken.yaml"
    os.mkfifo(path) if content is None else path.write_text(content)
    monkeypatch.setenv("FLAGBENCH_MANIFESTS", str(manifests))
    command = [sys.executable, "-m", "flagbench", "list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert "cases/broken.yaml" in done.stderr


def on_a_terminal(*arguments: str, columns: int) -> str:
    """What a command writes to a terminal of so many columns."""
    parent, child = pty.openpty()
    terminal = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), "NO_COLOR": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "flagbench", *arguments], stdout=child, stdin=child, env=terminal
    )
    os.close(child)
    shown = b""
    with contextlib.suppress(OSError):  # Linux ends a pty with EIO
        while chunk := os.read(parent, 65536):
            shown += chunk
    os.close(parent)
    assert process.wait() == 0
    return shown.decode().replace("\r\n", "\n")


def test_a_terminal_gets_a_table_that_fits_and_all_of_it_with_wide(flagbench: Flagbench) -> None:
    piped = flagbench("list cases").out
    narrow = on_a_terminal("list", "cases", columns=60)
    assert all(len(line) <= 60 for line in narrow.splitlines())
    assert {line.split()[0] for line in piped.splitlines()} <= {line.split()[0] for line in narrow.splitlines()}
    assert "\x1b" not in narrow
    assert on_a_terminal("list", "cases", "--wide", columns=60) == piped


def test_compiled_manifests_are_checked(
    flagbench: Flagbench, manifests: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLAGBENCH_MANIFESTS", str(manifests))
    outside = flagbench("manifests compile")
    assert (outside.code, "is not in a checkout" in outside.err) == (ExitCode.USAGE, True)
    (manifests.parent / "entrypoints" / "flagbench_cases").mkdir(parents=True)
    stale = flagbench("manifests compile --check")
    assert (stale.code, "cases/distilbert/case.json" in stale.err) == (ExitCode.USAGE, True)
    assert "cases/distilbert/case.json" in flagbench("manifests compile --json").json["changed"]
    assert flagbench("manifests compile --check").code == 0
