"""`flagbench list` shows what there is, to a person and to a script."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from flagbench.cli import complete, main
from flagbench.errors import ExitCode

BUILDER = Path(__file__).parents[3] / "builder"


def builder_environment(**more: str) -> dict[str, str]:
    """This environment with the host package importable, as a fresh process needs it."""
    path = os.pathsep.join([str(BUILDER), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, **more}


def test_all_three_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["list"]) == 0
    text = capsys.readouterr().out
    assert [line for line in text.splitlines() if line in ("cases", "stacks", "claims")] == [
        "cases",
        "stacks",
        "claims",
    ]
    assert "\x1b" not in text


def test_columns_are_aligned_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["list", "claims"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    column = header.index("PUBLISHED")
    assert rows[0].startswith("distilbert/a100-1x8-fp32 ")
    assert [row[column:] for row in rows][:2] == ["p_core 1942.6 samples/s", "p_core 2181.0 samples/s"]
    k100 = next(row for row in rows if row.startswith("glm/k100-1x8-fp16-bs8 "))
    assert k100[column:] == "no p_core, only acc, mem_peak"
    assert k100[:column].split()[-1] == "none"


def test_json_has_the_kinds_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["list", "--json"]) == 0
    everything = json.loads(capsys.readouterr().out)
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
    assert main.run(["list", "stacks", "--json"]) == 0
    only = json.loads(capsys.readouterr().out)
    assert only == {"stacks": everything["stacks"]}


def test_a_broken_manifest_is_told_and_exits_2(
    manifests: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (manifests / "stacks" / "cpu.yaml").write_text("schema: stack/v1\n")
    monkeypatch.setenv("FLAGBENCH_MANIFESTS", str(manifests))
    assert main.run(["list"]) == ExitCode.USAGE
    output = capsys.readouterr()
    assert output.out == ""
    assert "manifests/stacks/cpu.yaml:1: name: missing" in output.err
    assert complete.images("") == []


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_a_manifest_nested_without_end_is_a_problem_of_its_file(manifests: Path, opening: str) -> None:
    (manifests / "cases" / "deep.yaml").write_text(opening * 100_000)
    # In a process of its own: libyaml's parser recurses in C, and would take this one with it.
    done = subprocess.run(
        [sys.executable, "-m", "flagbench", "list", "cases"],
        env=builder_environment(FLAGBENCH_MANIFESTS=str(manifests)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert "cases/deep.yaml" in done.stderr


def test_a_manifest_that_is_a_pipe_is_a_problem_and_no_wait(
    manifests: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(manifests / "cases" / "pipe.yaml")
    monkeypatch.setenv("FLAGBENCH_MANIFESTS", str(manifests))
    assert main.run(["list"]) == ExitCode.USAGE
    assert "cases/pipe.yaml" in capsys.readouterr().err


def on_a_terminal(*arguments: str, columns: int) -> str:
    """What a command writes to a terminal of so many columns."""
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "flagbench", *arguments]
    terminal = {"TERM": "xterm-256color", "COLUMNS": str(columns), "NO_COLOR": "1"}
    process = subprocess.Popen(command, stdout=child, stdin=child, env=builder_environment(**terminal))
    os.close(child)
    shown = b""
    with contextlib.suppress(OSError):  # Linux ends a pty with EIO
        while chunk := os.read(parent, 65536):
            shown += chunk
    os.close(parent)
    assert process.wait() == 0
    return shown.decode().replace("\r\n", "\n")


def test_a_terminal_gets_a_table_that_fits_and_all_of_it_with_wide() -> None:
    piped = subprocess.run(
        [sys.executable, "-m", "flagbench", "list", "cases"],
        env=builder_environment(),
        capture_output=True,
        text=True,
    ).stdout
    narrow = on_a_terminal("list", "cases", columns=60)
    assert all(len(line) <= 60 for line in narrow.splitlines())
    assert {line.split()[0] for line in piped.splitlines()} <= {line.split()[0] for line in narrow.splitlines()}
    assert "\x1b" not in narrow
    assert on_a_terminal("list", "cases", "--wide", columns=60) == piped


def test_completion_knows_images_and_claims() -> None:
    assert "distilbert:cpu" in complete.images("distilbert:c")
    assert complete.images("x") == []
    assert "distilbert/a100-2x8-fp32-bs96" in complete.claims("distilbert/a100-2")


def test_compiled_manifests_are_checked(
    manifests: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLAGBENCH_MANIFESTS", str(manifests))
    assert main.run(["manifests", "compile"]) == ExitCode.USAGE
    assert "is not in a checkout" in capsys.readouterr().err
    package = manifests.parent / "entrypoints" / "flagbench_cases"
    package.mkdir(parents=True)
    assert main.run(["manifests", "compile", "--check"]) == ExitCode.USAGE
    assert "stale: cases/distilbert/case.json, " in capsys.readouterr().err
    assert main.run(["manifests", "compile", "--json"]) == 0
    assert "cases/distilbert/case.json" in json.loads(capsys.readouterr().out)["changed"]
    assert main.run(["manifests", "compile", "--check"]) == 0
