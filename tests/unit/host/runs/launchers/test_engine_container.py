"""How the end of a container is classified: refused, ended, or the connection to the engine lost; what is frozen."""

from __future__ import annotations

import math
from typing import Any

import pytest
import requests
from docker.errors import APIError, NotFound

from flagbench.errors import FlagbenchError
from flagbench.runs.launchers.container_exit import RunEnd
from flagbench.runs.launchers.engine_container import _ContainerRun, is_container_frozen
from flagbench.system.signals import Forwarding
from flagbench_core.exit_codes import ExitCode

REFUSAL = "echo 'docker: Error response from daemon: Minimum memory limit allowed is 6MB.' >&2; exit 125"


class Engine:
    """The engine's API, which answers with the State of the container, or raises an error instead."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.processes: Any = []

    def inspect_container(self, name: str) -> dict[str, Any]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return {"State": self.answer}

    def top(self, name: str, ps_args: str) -> dict[str, Any]:
        if isinstance(self.processes, Exception):
            raise self.processes
        return {"Processes": self.processes}


def follow(answer: Any, script: str, docker: str = "/bin/sh") -> RunEnd | FlagbenchError:
    """Follow a shell script in the place of docker's client."""
    with Forwarding() as forwarder:
        return _ContainerRun(Engine(answer), "box", forwarder, math.inf).follow(docker, ["docker", "-c", script])


def test_a_container_that_ended() -> None:
    end = follow({"Status": "exited", "ExitCode": 5, "OOMKilled": True}, "echo record; exit 5")
    assert isinstance(end, RunEnd)
    assert (end.printed, end.code, end.oom_killed, end.killed_after) == (b"record\n", 5, True, None)


def test_a_container_that_was_removed() -> None:
    end = follow(NotFound("no such container"), "exit 137")
    assert isinstance(end, RunEnd)
    assert end.code is None


@pytest.mark.parametrize("answer", [{"Status": "created"}, NotFound("no such container")])
def test_a_container_that_was_refused(answer: Any) -> None:
    with pytest.raises(FlagbenchError) as caught:
        follow(answer, REFUSAL)
    assert caught.value.code is ExitCode.USAGE
    assert "--memory" in caught.value.remedy


@pytest.mark.parametrize(
    "answer", [{"Running": True}, requests.ConnectionError(), ValueError("half an answer"), APIError("500")]
)
def test_a_lost_connection(answer: Any) -> None:
    error = follow(answer, "exit 125")
    assert isinstance(error, FlagbenchError)
    assert error.code is ExitCode.ENGINE


def test_a_client_that_cannot_be_started() -> None:
    with pytest.raises(FlagbenchError) as caught:
        follow({}, "", docker="/nowhere/docker")
    assert caught.value.code is ExitCode.ENGINE
    assert "/nowhere/docker" in caught.value.message


@pytest.mark.parametrize(
    ("processes", "is_frozen"),
    [
        ([["100", "90", "Ss"], ["101", "100", "Sl"]], False),
        ([["100", "90", "Ts"], ["101", "100", "Sl"]], True),
        ([["100", "90", "Ss"], ["101", "100", "Tl"]], True),
        (
            [["100", "90", "Ss"], ["101", "100", "Sl"], ["102", "101", "Tl"]],
            False,
        ),  # a rank, which its parent watches
        (None, False),
        ([["100", "Ts"]], False),
        (APIError("the container is not running"), False),
        (requests.ReadTimeout("the engine is busy"), False),
        (requests.ConnectionError("the engine is restarted"), False),
    ],
)
def test_a_container_is_frozen_if_its_main_process_is_stopped(processes: Any, is_frozen: bool) -> None:
    engine = Engine({"Running": True, "Paused": False, "Pid": 100})
    engine.processes = processes
    assert is_container_frozen(engine, "box") is is_frozen


def test_a_paused_container_is_frozen() -> None:
    assert is_container_frozen(Engine({"Running": True, "Paused": True}), "box")
