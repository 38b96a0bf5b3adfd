"""The command line starts fast, and no command loads what it does not need."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

REPEATS = 15
# Never needed to list, verify or compare.
HEAVY = {"torch", "docker", "boto3", "botocore", "requests", "jinja2", "numpy"}

# What an installer writes as the `flagbench` script. (`python -m` adds the cost of runpy, which is Python's.)
SCRIPT = "import sys\nfrom flagbench.__main__ import main\nsys.exit(main())"
# Runs a command as `flagbench` does, then prints which top-level modules it has loaded on stderr.
LOADED = """
import json, sys
sys.argv[0] = "flagbench"
from flagbench.__main__ import main
code = main()
print("loaded " + json.dumps(sorted({name.partition(".")[0] for name in sys.modules})), file=sys.stderr)
sys.exit(code)
"""


def loaded(arguments: list[str], **environment: str) -> set[str]:
    """The top-level modules that a command loads."""
    command = [sys.executable, "-c", LOADED, *arguments]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    line = next(line for line in done.stderr.splitlines() if line.startswith("loaded "))
    return set(json.loads(line.removeprefix("loaded ")))


def cpu_seconds(arguments: list[str]) -> float:
    """The CPU time, user and system, of one run of this Python."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def cpu_ratio(ours: list[str], theirs: list[str]) -> float:
    """The least of ours over the least of theirs; taking turns, both meet the same disturbances."""
    pairs = [(cpu_seconds(ours), cpu_seconds(theirs)) for _ in range(REPEATS)]
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
    modules = loaded(line.format(record=record).split(), FLAGBENCH_STORE=store, DOCKER_HOST=no_engine)
    assert "flagbench" in modules
    assert not modules & (HEAVY | unneeded)
