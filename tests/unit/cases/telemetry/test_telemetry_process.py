"""The sampler as a process: its arguments, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flagbench_cases.telemetry.__main__ import main
from flagbench_cases.telemetry.summary import read_start, summarise

pytestmark = pytest.mark.image

DEADLINE_S = 20.0

# Starts a sampler and waits to be killed; the sampler shares this process's standard error.
PARENT = """
import os, subprocess, sys
module = [sys.executable, "-m", "flagbench_cases.telemetry"]
subprocess.Popen([*module, "--pid", str(os.getpid()), *sys.argv[1:]])
sys.stdin.read()
os._exit(0)
"""


def first_line(path: Path, sampler: subprocess.Popen[str]) -> dict[str, Any]:
    """The start line, as soon as it is there."""
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until and sampler.poll() is None:
        if path.exists() and b"\n" in path.read_bytes():
            return json.loads(path.read_bytes().splitlines()[0])
        select.select([], [], [], 0.01)
    pytest.fail(f"no start line within {DEADLINE_S:.0f} s; exit code {sampler.poll()}")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("--interval", value) for value in ("0.5", "nan")),
        ("--monitor", "mx"),
        *(("--devices", value) for value in ("0,x", "1,1")),
        ("--pid", "4194999"),
    ],
)
def test_wrong_arguments_are_usage_errors(tmp_path: Path, capsys: Any, option: str, value: str) -> None:
    out = tmp_path / "t.jsonl"
    valid = ["--out", str(out), "--monitor", "cpu", "--pid", str(os.getpid())]
    with pytest.raises(SystemExit) as ended:
        main([*valid, option, value])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert option in error or value in error
    assert not out.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_within_two_seconds(tmp_path: Path, start_sampler: Callable, number: int) -> None:
    out = tmp_path / "t.jsonl"
    # The interval is long: what ends it is the signal, not the next sample.
    sampler = start_sampler(out, "cpu", "--interval", "600")
    start = first_line(out, sampler)
    sampler.send_signal(number)
    _, errors = sampler.communicate(timeout=2.0)
    assert (sampler.returncode, errors) == (0, "")
    assert start["kind"] == "start"
    assert {os.getpid(), sampler.pid} <= set(start["run_pids"])
    summary = summarise(str(out))
    assert summary["samples"] == 1
    assert summary["cpu"]["rss_max_bytes"] > 1 << 20


def test_it_ends_with_its_parent(tmp_path: Path, clean_environment: Callable) -> None:
    out = tmp_path / "t.jsonl"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, "--out", str(out), "--monitor", "cpu", "--interval", "600"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
        universal_newlines=True,
        start_new_session=True,
    )
    try:
        first_line(out, parent)
        parent.kill()
        # Standard error ends when the last process that holds it has ended: the sampler.
        _, errors = parent.communicate(timeout=DEADLINE_S)
        assert errors == ""
    finally:
        with contextlib.suppress(ProcessLookupError):  # a group is gone once its last process is
            os.killpg(parent.pid, signal.SIGKILL)


def test_a_full_disk_ends_it_quietly_with_whole_lines(tmp_path: Path, start_sampler: Callable) -> None:
    out = tmp_path / "t.jsonl"
    room = 200  # more than a start line, less than a start line and a sample

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    sampler = start_sampler(out, "cpu", preexec_fn=limit)
    _, errors = sampler.communicate(timeout=DEADLINE_S)
    assert (sampler.returncode, errors) == (0, "")
    lines = out.read_bytes().splitlines(keepends=True)
    assert len(lines) == 1
    assert lines[0].endswith(b"\n")
    assert read_start(str(out)) == json.loads(lines[0].decode())


def test_the_start_line_shows_who_was_there_before(
    tmp_path: Path, start_sampler: Callable, nvml_stub: Callable
) -> None:
    out = tmp_path / "t.jsonl"
    sampler = start_sampler(out, "nvml", "--devices", "0,1", env=nvml_stub("R470"))
    start = first_line(out, sampler)
    sampler.terminate()
    sampler.communicate(timeout=DEADLINE_S)
    assert sampler.returncode == 0
    assert start["driver_version"] == "470.129.06"
    summary = summarise(str(out))
    assert [device["foreign_processes"] for device in summary["devices"]] == [0, 1]
    assert summary["devices"][0]["mem_used_before_bytes"] == 600 << 20


def test_what_was_read_too_late_is_no_other_tenant(
    tmp_path: Path, start_sampler: Callable, nvml_stub: Callable
) -> None:
    out = tmp_path / "t.jsonl"
    late = {**nvml_stub(), "NVML_STUB_INIT_MS": "300"}
    start = first_line(out, start_sampler(out, "nvml", "--used-from", str(time.monotonic() + 0.1), env=late))
    assert start["driver_version"] == "580.65.06"
    assert all("uuid" in device for device in start["devices"])
    summary = summarise(str(out))
    assert [{"mem_used_before_bytes", "foreign_processes"} & set(device) for device in summary["devices"]] == [
        set()
    ] * 2
    assert len(summary["problems"]) == 1


def test_a_monitor_that_hangs_is_told(tmp_path: Path, start_sampler: Callable, nvml_stub: Callable) -> None:
    out = tmp_path / "t.jsonl"
    sampler = start_sampler(out, "nvml", env={**nvml_stub(), "NVML_STUB_HANG_AFTER": "1"})
    began = first_line(out, sampler)["t"]
    sampler.kill()
    summary = summarise(str(out), (began, began + 60.0))
    assert (summary["samples"], summary["errors"]) == (1, 0)
    assert [text.partition(":")[2] for text in summary["problems"]] == [" the monitor stopped answering"]


@pytest.mark.parametrize("monitor", ["nvml", "mx_smi"])
def test_it_needs_neither_torch_nor_other_packages(clean_environment: Callable, monitor: str) -> None:
    modules = "flagbench_cases.telemetry.__main__, flagbench_cases.telemetry.monitors.%s" % monitor
    script = "import sys, %s\nprint(*sys.modules)" % modules
    done = subprocess.run([sys.executable, "-c", script], env=clean_environment(), stdout=subprocess.PIPE, check=True)
    assert not {"torch", "numpy", "psutil"} & set(done.stdout.decode().split())
