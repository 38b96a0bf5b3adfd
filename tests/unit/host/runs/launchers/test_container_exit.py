"""Of a container that left no record, the engine's State says how it ended, and the host writes that down."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest

from flagbench.errors import FlagbenchError
from flagbench.records.read import read_record
from flagbench.runs.launchers.container_exit import (
    RunEnd,
    RunImage,
    choose_exit_code,
    explain_missing_record,
    find_record,
    record_of_killed,
)
from flagbench.runs.request import RunRequest
from flagbench_core.exit_codes import ExitCode

TERM = int(signal.SIGTERM)
LINE = b'{"schema":"record/v1","status":{"exit_code":3}}'


@pytest.mark.parametrize(
    ("ended", "code", "named"),
    [
        (RunEnd(b"", 1, None, None, oom_killed=True), ExitCode.OUT_OF_MEMORY, "exit code 1,"),
        (RunEnd(b"", 137, None, None), ExitCode.RANK_FAILED, "OOMKilled false"),
        (RunEnd(b"", 137, TERM, 10.0), ExitCode.INTERRUPTED, "10 s"),
        (RunEnd(b"", 137, TERM, None, oom_killed=True), ExitCode.OUT_OF_MEMORY, "exit code 137"),
        (RunEnd(b"", 137, TERM, 10.0, oom_killed=True), ExitCode.INTERRUPTED, "10 s"),
        (RunEnd(b"", 143, None, None), ExitCode.INTERRUPTED, "SIGTERM"),
        (RunEnd(b"", 130, None, None), ExitCode.INTERRUPTED, "SIGINT"),
        (RunEnd(b"", 3, None, None), ExitCode.DATA, "exit code 3,"),
        (RunEnd(b"", 0, None, None), ExitCode.RANK_FAILED, "exit code 0,"),
        (RunEnd(b"", None, None, None), ExitCode.RANK_FAILED, "removed"),
        (RunEnd(b"", None, TERM, None), ExitCode.INTERRUPTED, "SIGTERM, and the container no longer exists"),
    ],
)
def test_why_there_is_no_record(ended: RunEnd, code: ExitCode, named: str) -> None:
    error = explain_missing_record(ended)
    assert error.code is code
    assert named in error.message
    assert error.remedy


def test_the_record_is_found_among_what_else_was_printed() -> None:
    assert find_record(LINE + b"\n") == LINE + b"\n"
    assert find_record(b"a banner\n[1, 2]\n" + LINE + b"\n\xff\n") == LINE + b"\n"
    for none in (b"", b"\n", b"banner\n", b'{"schema": 1}\n', b'"record/v1"\n', b"[" * 100_000):
        assert find_record(none) == b""


@pytest.mark.parametrize(
    ("status", "ended", "code"),
    [
        ({"state": "ok", "exit_code": 0}, 0, 0),
        ({"state": "ok", "exit_code": 0}, 14, 14),
        ({"state": "ok", "exit_code": 0}, 120, 4),
        ({"state": "ok", "exit_code": 0}, 137, 4),
        ({"state": "ok", "exit_code": 0}, None, 0),
        ({"exit_code": 3}, 7, 7),
        ({"state": "failed", "exit_code": 12}, 0, 12),
        ({"state": "failed", "exit_code": 12}, 137, 12),
        ({"state": "failed", "exit_code": 0}, 0, 4),
        ({"state": "failed", "exit_code": 0}, None, 4),
        ({"state": "interrupted", "exit_code": 7}, -9, 7),
        ({"exit_code": "x"}, 137, 4),
        ({"exit_code": 77}, 137, 4),
        (None, 137, 4),
    ],
)
def test_the_code_of_a_run_that_left_a_record(status: object, ended: int | None, code: int) -> None:
    assert choose_exit_code(json.dumps({"schema": "record/v1", "status": status}).encode(), ended) == code


def test_the_record_of_a_killed_container(make_request: Callable[..., RunRequest]) -> None:
    killed = FlagbenchError("https://me:hunter2@registry.example", remedy="look", code=ExitCode.OUT_OF_MEMORY)
    line = record_of_killed(make_request(), killed, image=RunImage("r.example/a@sha256:2", "sha256:1", "gpu-7"))
    record = read_record(line)
    assert (record.status.exit_code, record.system.host) == (5, "gpu-7")
    assert record.status.reason == "https://***@registry.example"
    raw = json.loads(line)
    assert raw["system"]["image"]["digest"] == "r.example/a@sha256:2"
    assert raw["system"]["image"]["id"] == "sha256:1"
    assert raw["software"]["python"] == make_request().stack.python
