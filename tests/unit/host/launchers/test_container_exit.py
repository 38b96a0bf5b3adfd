"""Of a container that left no record, the engine's State says how it ended, and the host writes that down."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest
from docker.errors import APIError, NotFound

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.launchers.container_exit import Ended, RunImage, exit_code, explain, record_in, record_of_killed
from flagbench.launchers.docker import DockerLauncher
from flagbench.launchers.host import Host
from flagbench.record.read import read_record
from flagbench.request import RunRequest

TERM = int(signal.SIGTERM)
LINE = b'{"schema":"record/v1","status":{"exit_code":3}}'


@pytest.mark.parametrize(
    ("ended", "code", "named"),
    [
        (Ended(b"", 1, None, None, oom_killed=True), ExitCode.OUT_OF_MEMORY, "exit code 1,"),
        (Ended(b"", 137, None, None), ExitCode.RANK_FAILED, "OOMKilled false"),
        (Ended(b"", 137, TERM, 10.0), ExitCode.INTERRUPTED, "10 s"),
        (Ended(b"", 137, TERM, None, oom_killed=True), ExitCode.OUT_OF_MEMORY, "exit code 137"),
        (Ended(b"", 137, TERM, 10.0, oom_killed=True), ExitCode.INTERRUPTED, "10 s"),
        (Ended(b"", 143, None, None), ExitCode.INTERRUPTED, "SIGTERM"),
        (Ended(b"", 130, None, None), ExitCode.INTERRUPTED, "SIGINT"),
        (Ended(b"", 3, None, None), ExitCode.DATA, "exit code 3,"),
        (Ended(b"", 0, None, None), ExitCode.RANK_FAILED, "exit code 0,"),
        (Ended(b"", None, None, None), ExitCode.RANK_FAILED, "removed"),
        (Ended(b"", None, TERM, None), ExitCode.INTERRUPTED, "SIGTERM, and the container no longer exists"),
    ],
)
def test_why_there_is_no_record(ended: Ended, code: ExitCode, named: str) -> None:
    error = explain(ended)
    assert error.code is code
    assert named in error.message
    assert error.remedy


def test_the_record_is_found_among_what_else_was_printed() -> None:
    assert record_in(LINE + b"\n") == LINE + b"\n"
    assert record_in(b"a banner\n[1, 2]\n" + LINE + b"\n\xff\n") == LINE + b"\n"
    for none in (b"", b"\n", b"banner\n", b'{"schema": 1}\n', b'"record/v1"\n', b"[" * 100_000):
        assert record_in(none) == b""


@pytest.mark.parametrize(
    ("status", "ended", "code"),
    [
        ({"state": "ok", "exit_code": 0}, 0, 0),
        ({"state": "ok", "exit_code": 0}, 14, 14),
        ({"state": "ok", "exit_code": 0}, 120, 4),
        ({"state": "ok", "exit_code": 0}, 137, 4),
        ({"state": "ok", "exit_code": 0}, None, 0),
        ({"exit_code": 3}, 0, 3),
        ({"exit_code": 3}, 7, 7),
        ({"exit_code": 3}, 255, 3),
        ({"exit_code": 3}, None, 3),
        ({"state": "failed", "exit_code": 12}, 0, 12),
        ({"state": "failed", "exit_code": 12}, 12, 12),
        ({"state": "failed", "exit_code": 12}, 137, 12),
        ({"state": "failed", "exit_code": 0}, 0, 4),
        ({"state": "failed", "exit_code": 0}, None, 4),
        ({"state": "interrupted", "exit_code": 7}, -9, 7),
        ({}, 137, 4),
        ({"exit_code": "x"}, 137, 4),
        ({"exit_code": 77}, 137, 4),
        (None, 137, 4),
    ],
)
def test_the_code_of_a_run_that_left_a_record(status: object, ended: int | None, code: int) -> None:
    assert exit_code(json.dumps({"schema": "record/v1", "status": status}).encode(), ended) == code


CONFIG = f"sha256:{'c' * 64}"


class Engine:
    """As much of docker-py's low-level client as a container needs, which prints and ends as a test says."""

    def __init__(self, printed: bytes, wait: Callable[[Engine], None], state: dict[str, Any] | None) -> None:
        self.printed, self.wait_for, self.state = printed, wait, state
        self.timeout = 0.0
        self.config: dict[str, Any] = {}
        self.calls: SimpleQueue[str] = SimpleQueue()
        self.api = self

    def info(self) -> dict[str, Any]:
        return {"DriverStatus": [["Backing Filesystem", "extfs"]]}

    def inspect_image(self, name: str) -> dict[str, Any]:
        return {"Id": "sha256:1"}

    def create_container_from_config(self, config: dict[str, Any], name: str) -> dict[str, Any]:
        self.config = config
        return {"Id": name}

    def attach(self, container: str, **options: Any) -> Iterator[tuple[bytes, bytes]]:
        return iter([(self.printed, b"")])

    def start(self, container: str) -> None:
        pass

    def wait(self, container: str, timeout: float | None) -> None:
        self.wait_for(self)

    def unpause(self, container: str) -> None:
        self.calls.put("unpause")
        raise APIError("it is not paused")

    def kill(self, container: str, number: str = "SIGKILL") -> None:
        self.calls.put(number)

    def inspect_container(self, container: str) -> dict[str, Any]:
        if self.state is None:
            raise NotFound("gone")
        return {"State": self.state}

    def remove_container(self, container: str, **options: Any) -> None:
        self.calls.put("remove")
        raise NotFound("gone")

    def close(self) -> None:
        pass


def gone(engine: Engine) -> None:
    raise NotFound("gone")


def lost(engine: Engine) -> None:
    raise ConnectionResetError


def stopped(engine: Engine) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    assert engine.calls.get() == "SIGTERM"


def stuck(engine: Engine) -> None:
    stopped(engine)
    assert engine.calls.get() == "unpause"
    assert engine.calls.get() == "SIGKILL"


@pytest.mark.parametrize(
    ("printed", "wait", "state", "nodes", "code", "named"),
    [
        (LINE, gone, None, 1, 3, ""),
        (b"", gone, None, 1, 4, "removed"),
        (b"", gone, None, 2, 4, "removed"),
        (LINE, lost, {"ExitCode": 0}, 1, 15, "connection"),
        (b"", stopped, {"ExitCode": 143}, 1, 7, "SIGTERM; the container left no record (exit code 143"),
        (b"", stuck, {"ExitCode": 137, "OOMKilled": True}, 1, 7, "did not end within 0 s"),
        (b"", lambda engine: None, {"ExitCode": 1, "Error": "a\nb"}, 1, 4, "): a b"),
        (b"", lambda engine: None, {"ExitCode": 137, "OOMKilled": True}, 1, 5, "OOMKilled true"),
    ],
)
def test_how_a_container_ends(
    monkeypatch: pytest.MonkeyPatch,
    make_request: Callable[..., RunRequest],
    make_host: Callable[..., Host],
    printed: bytes,
    wait: Callable[[Engine], None],
    state: dict[str, Any] | None,
    nodes: int,
    code: int,
    named: str,
) -> None:
    monkeypatch.setattr("flagbench.launchers.signals.GRACE_SECONDS", 0.1)
    engine = Engine(printed, wait, state)
    launcher = DockerLauncher(host=make_host(), connect=lambda: engine, environment={})
    result = launcher.launch(make_request(nodes=nodes))
    status = json.loads(result.record)["status"]
    assert (result.exit_code, status["exit_code"]) == (code, code)
    assert named in status.get("reason", "")
    assert engine.config["Env"] == ["FLAGBENCH_IMAGE_DIGEST=sha256:1", "FLAGBENCH_IMAGE_ID=sha256:1"]


@pytest.mark.parametrize(
    ("repo_digests", "driver", "digest", "image_id"),
    [
        ([], "extfs", CONFIG, CONFIG),
        (["b.example/b@sha256:2"], "extfs", "b.example/b@sha256:2", CONFIG),
        ([], "io.containerd.snapshotter.v1", CONFIG, None),
    ],
    ids=["built here", "pulled or pushed", "containerd image store"],
)
def test_how_a_record_names_the_image(
    repo_digests: list[str],
    driver: str,
    digest: str,
    image_id: str | None,
    make_request: Callable[..., RunRequest],
    make_host: Callable[..., Host],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine(LINE, lambda engine: None, {"ExitCode": 0})
    monkeypatch.setattr(engine, "inspect_image", lambda name: {"Id": CONFIG, "RepoDigests": repo_digests})
    monkeypatch.setattr(engine, "info", lambda: {"DriverStatus": [["driver-type", driver]]})
    DockerLauncher(host=make_host(), connect=lambda: engine, environment={}).launch(make_request())
    named = dict(entry.split("=", 1) for entry in engine.config["Env"])
    assert named["FLAGBENCH_IMAGE_DIGEST"] == digest
    assert named.get("FLAGBENCH_IMAGE_ID") == image_id


def test_the_record_of_a_killed_container_says_which_image_it_was(make_request: Callable[..., RunRequest]) -> None:
    killed = FlagbenchError("https://me:hunter2@registry.example", remedy="look", code=ExitCode.OUT_OF_MEMORY)
    line = record_of_killed(make_request(), killed, image=RunImage("r.example/a@sha256:2", "sha256:1"))
    record = read_record(line)
    assert record.status.exit_code == 5
    assert record.status.reason == "https://***@registry.example"
    raw = json.loads(line)
    assert raw["system"]["image"]["digest"] == "r.example/a@sha256:2"
    assert raw["system"]["image"]["id"] == "sha256:1"
    assert raw["software"]["python"] == make_request().stack.python
