"""No command loads, starts or reads what it does not need; tests/bench/startup.py measures what starting costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

# Never needed to list, verify or compare.
HEAVY = {"torch", "docker", "boto3", "botocore", "requests", "jinja2", "numpy"}

# Runs a command as `flagbench` does, then prints on stderr which top-level modules it has loaded, which locks of
# stacks it has read and which processes it has started.
OBSERVED = """
import json, sys
locks, started = [], []

def hook(event, arguments):
    if event == "open" and "/pylock." in str(arguments[0]):
        locks.append(str(arguments[0]))
    elif event == "subprocess.Popen":
        started.append(str(arguments[0]))

sys.addaudithook(hook)
sys.argv[0] = "flagbench"
from flagbench.__main__ import main
code = main()
modules = sorted({name.partition(".")[0] for name in sys.modules})
print("observed " + json.dumps([code, modules, locks, started]), file=sys.stderr)
sys.exit(code)
"""


class Observed(NamedTuple):
    """What a command did."""

    exit_code: int
    modules: list[str]
    locks: list[str]
    started: list[str]


def observe(arguments: list[str], **environment: str) -> Observed:
    """Run a command; what it did."""
    command = [sys.executable, "-c", OBSERVED, *arguments]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    line = next(line for line in done.stderr.splitlines() if line.startswith("observed "))
    return Observed(*json.loads(line.removeprefix("observed ")))


@pytest.mark.parametrize(
    ("line", "unneeded"),
    [
        ("--version", {"typer", "click", "jsonschema", "yaml", "rich", "pathlib"}),
        ("--help", {"jsonschema", "yaml", "rich", "platformdirs", "referencing"}),
        ("list", {"rich"}),
        ("list --json", {"rich"}),
        ("results ls", {"rich"}),
        ("doctor", {"rich"}),
        ("verify {record} --claim distilbert/a100-1x8-fp32", {"rich"}),
        ("compare {record} {record}", {"rich"}),
    ],
)
def test_no_command_that_reads_loads_an_engine_or_a_framework(
    line: str, unneeded: set[str], tmp_path: Path, make_record: Callable[..., bytes]
) -> None:
    record = tmp_path / "record.json"
    record.write_bytes(make_record())
    # Where an engine is, doctor asks it.
    no_engine = f"unix://{tmp_path / 'docker.sock'}"
    store = str(tmp_path / "store")
    seen = observe(line.format(record=record).split(), FLAGBENCH_STORE=store, DOCKER_HOST=no_engine)
    assert "flagbench" in seen.modules
    assert not set(seen.modules) & (HEAVY | unneeded)


@pytest.mark.parametrize(
    "line",
    [
        "list",
        "run distilbert:cpu --via docker --show-command",
        "render --all --check",
        "manifests docs --check",
        "job distilbert:cpu --for kubernetes",
    ],
)
def test_a_command_that_needs_no_process_starts_none_and_reads_each_lock_once(line: str, tmp_path: Path) -> None:
    seen = observe(line.split(), FLAGBENCH_STORE=str(tmp_path))
    assert (seen.exit_code, seen.started) == (0, [])
    assert len(seen.locks) == len(set(seen.locks))
