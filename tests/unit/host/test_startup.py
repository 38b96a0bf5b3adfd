"""No command loads, starts, reads or requires what it does not need; tests/bench/startup.py measures the cost."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from flagbench.cli.app import COMMANDS
from flagbench_core.exit_codes import ExitCode

from .conftest import REPLAY, MakeRecord, process

# Never needed to list, verify or compare.
HEAVY = {"torch", "docker", "boto3", "botocore", "requests", "jinja2", "numpy", "rich", "pydantic"}

# Runs a command as `flagbench` does, then prints on stderr its exit code, which top-level modules it has loaded,
# which locks of stacks it has read and which processes it has started.
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
"""

# Runs commands in a Python without any extra and development tool; prints each with its exit code on stderr.
WITHOUT = """
import sys
for name in ("uv", "kubernetes_validate", "boto3"):
    sys.modules[name] = None
from flagbench.cli import main
for line in sys.argv[1:]:
    code = main.run(line.split())
    print(line, code, file=sys.stderr)
"""


def observe(line: str, **environment: str) -> list[list[str]]:
    """Run a command: the modules it has loaded, the locks it has read, the processes it has started."""
    done = process("-c", OBSERVED, *line.split(), **environment)
    (seen,) = (shown for shown in done.stderr.splitlines() if shown.startswith("observed "))
    code, *rest = json.loads(seen.removeprefix("observed "))
    assert code in (ExitCode.OK, ExitCode.INVALID)
    return rest


@pytest.mark.parametrize(
    ("line", "unneeded"),
    [
        ("--version", {"typer", "click", "jsonschema_rs", "yaml", "pathlib"}),
        ("--help", {"jsonschema_rs", "yaml", "platformdirs"}),
        ("list", set()),
        ("results ls", set()),
        ("verify {record} --claim distilbert/a100-1x8-fp32", set()),
        ("plan llama2-70b --gpus 32 --mem 64", set()),
    ],
)
def test_no_command_that_reads_loads_an_engine_or_a_framework(
    line: str, unneeded: set[str], tmp_path: Path, make_record: MakeRecord
) -> None:
    record = tmp_path / "record.json"
    record.write_bytes(make_record())
    store = str(tmp_path / "store")
    modules, _, _ = observe(line.format(record=record), FLAGBENCH_STORE=store)
    assert "flagbench" in modules
    assert not set(modules) & (HEAVY | unneeded)


def test_no_process_is_started_and_each_lock_read_once(tmp_path: Path) -> None:
    _, locks, started = observe("render --all --check", FLAGBENCH_STORE=str(tmp_path))
    assert started == []
    assert len(locks) == len(set(locks))


def test_every_module_can_be_imported() -> None:
    script = (
        "import importlib, pkgutil, flagbench, flagbench_core\n"
        "for package in (flagbench, flagbench_core):\n"
        "    for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        if not module.name.endswith('__main__'):\n"
        "            importlib.import_module(module.name)\n"
    )
    assert process("-c", script).returncode == 0


def test_what_needs_no_extra_works_without_any(tmp_path: Path) -> None:
    lines = [
        *(f"{name} --help" for name in COMMANDS),
        "list",
        f"render glm:a100 -o {tmp_path}",
        f"verify {REPLAY}",
        f"compare {REPLAY} {REPLAY}",
        f"results ls --store {tmp_path / 'store'}",
        "job distilbert:a100 --for kubernetes --registry registry.example",
    ]
    assert process("-c", WITHOUT, *lines).stderr.splitlines() == [f"{line} 0" for line in lines]


@pytest.mark.parametrize(
    ("line", "extra"),
    [
        ("lock a100-cuda11.6", "lock"),
        ("results ls --store s3://bucket", "s3"),
    ],
)
def test_what_needs_an_extra_names_it(line: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.defpath)  # without what the extra installs, such as uv
    line = line.format(folder=tmp_path)
    *error, ended = process("-c", WITHOUT, line).stderr.splitlines()
    assert ended == f"{line} {int(ExitCode.USAGE)}"
    assert f".[{extra}]" in error[-1]
