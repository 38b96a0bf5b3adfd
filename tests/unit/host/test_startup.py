"""The command line starts fast, and no command loads what it does not need."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

REPEATS = 15
FEWER = 7
"""Repeats of a command that takes 0.3 s or more."""
# Never needed to list, verify or compare.
HEAVY = {"torch", "docker", "boto3", "botocore", "requests", "jinja2", "numpy"}

# What an installer writes as the `flagbench` script. (`python -m` adds the cost of runpy, which is Python's.)
SCRIPT = "import sys\nfrom flagbench.__main__ import main\nsys.exit(main())"
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


def cpu_seconds(arguments: list[str]) -> float:
    """The CPU time, user and system, of one run of this Python."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def cpu_ratio(ours: list[str], theirs: list[str], repeats: int = REPEATS) -> float:
    """The least of ours over the least of theirs; taking turns, both meet the same disturbances."""
    pairs = [(cpu_seconds(ours), cpu_seconds(theirs)) for _ in range(repeats)]
    return min(pair[0] for pair in pairs) / min(pair[1] for pair in pairs)


@pytest.mark.alone
def test_version_costs_at_most_twice_an_empty_program() -> None:
    assert cpu_ratio(["-c", SCRIPT, "--version"], ["-c", "pass"]) <= 2


@pytest.mark.alone
def test_help_costs_at_most_a_third_of_importing_the_clients_eagerly() -> None:
    for client in ("docker", "boto3", "jinja2"):
        pytest.importorskip(client)
    eager = f"import docker, boto3, jinja2\n{SCRIPT}"
    assert cpu_ratio(["-c", SCRIPT, "--help"], ["-c", eager, "--help"]) <= 0.35


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


@pytest.mark.alone
def test_list_costs_at_most_two_and_a_half_imports_of_its_libraries() -> None:
    libraries = "import typer, jsonschema, yaml, msgspec, packaging.utils"
    assert cpu_ratio(["-c", SCRIPT, "list"], ["-c", libraries], FEWER) <= 2.5


@pytest.mark.alone
@pytest.mark.parametrize(
    ("line", "most"),
    [
        ("run distilbert:cpu --via docker --show-command", 1.6),
        ("run distilbert:cpu --preset tiny --dry-run", 2.2),
        ("render --all --check", 1.75),
        ("manifests docs --check", 2.0),
        ("job distilbert:cpu --for kubernetes", 1.5),
    ],
)
def test_a_command_without_a_network_costs_little_more_than_list(
    line: str, most: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLAGBENCH_STORE", str(tmp_path))
    assert cpu_ratio(["-c", SCRIPT, *line.split()], ["-c", SCRIPT, "list"], FEWER) <= most
