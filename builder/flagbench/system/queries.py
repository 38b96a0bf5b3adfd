"""Asks other programs, such as git and nvidia-smi, and waits for a short answer within a time limit.

`ask` never raises for a program that is missing, fails or hangs: the `Answer` says how the question ended.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import IO, NamedTuple

ANSWER_SECONDS = 10.0
"""Seconds that an answer may take by default."""
_MOST_BYTES = 1 << 20
"""Bytes of both outputs together beyond which a program is stopped: far more than any answer that is read."""
_BLOCK_BYTES = 1 << 16
"""Most bytes read at once: the capacity of a pipe on Linux."""
_KILL_SECONDS = 0.5
"""Seconds that a killed program is waited for; one that hangs in the kernel stays longer."""
_NO_VARIABLES: Mapping[str, str] = MappingProxyType({})
"""The default of `ask`: no environment variables in addition to those of this process."""


class Ending(str, Enum):
    """The ways in which a question to a program ends."""

    MISSING = "missing"
    """The program is not installed, or its script names an interpreter that is not."""
    ANSWERED = "answered"
    """It ended with exit code 0."""
    FAILED = "failed"
    """It ended with an error, could not be started, or was stopped because it printed more than any answer has."""
    NO_ANSWER = "no answer"
    """It did not end in time."""


@dataclass(frozen=True)
class Answer:
    """The answer of a program, or the reason why there is none."""

    ending: Ending
    text: str = ""
    """Everything that the program printed on stdout, also before it failed."""
    problem: str | None = None
    """The reason why there is no answer, as a phrase to follow the program's name; None if it answered."""
    code: int | None = None
    """The program's exit code; None if it did not end by itself."""


class _Output(NamedTuple):
    """Everything that a program printed."""

    printed: bytearray
    """Its stdout."""
    errors: bytearray
    """Its stderr."""

    @property
    def is_too_long(self) -> bool:
        """Whether there is more than any answer has."""
        return len(self.printed) + len(self.errors) > _MOST_BYTES


def ask(
    command: Sequence[str], seconds: float | None = None, environment: Mapping[str, str] = _NO_VARIABLES
) -> Answer:
    """Run a command to its end. A process that hangs in the kernel is not waited for.

    Args:
        command: the program and its arguments.
        seconds: the time that it may take; ANSWER_SECONDS by default.
        environment: environment variables of the program, in addition to those of this process.
    """
    if seconds is None:
        seconds = ANSWER_SECONDS
    deadline = time.monotonic() + seconds
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "LC_ALL": "C", **environment},
        )
    except OSError as error:
        ending = Ending.FAILED
        if isinstance(error, FileNotFoundError):
            ending = Ending.MISSING
        return Answer(ending, problem=f"cannot be started: {error.strerror or error}")
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        output = _read(process.stdout, process.stderr, deadline)
    if output.is_too_long:
        _kill(process)
        return Answer(Ending.FAILED, problem="printed too much")
    code = _wait_or_kill(process, deadline - time.monotonic())
    if code is None:
        return Answer(Ending.NO_ANSWER, problem=f"did not answer within {seconds:g} s")
    text = output.printed.decode("utf-8", "replace")
    if code:
        errors = output.errors.decode("utf-8", "replace")
        return Answer(Ending.FAILED, text, _failure_reason(code, text, errors), code)
    return Answer(Ending.ANSWERED, text, code=code)


def _wait_or_kill(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """The exit code of a process that ends within `seconds`; otherwise kill it and return None."""
    try:
        return process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        _kill(process)
        return None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and those that it started, which are in its session, and wait shortly for its end."""
    with contextlib.suppress(OSError):  # it ended just now
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_SECONDS)


def _read(stdout: IO[bytes], stderr: IO[bytes], deadline: float) -> _Output:
    """Read both outputs until stdout is closed, the deadline has passed, or they are too long."""
    output = _Output(bytearray(), bytearray())
    open_streams = {stdout.fileno(): output.printed, stderr.fileno(): output.errors}
    poller = select.poll()
    for descriptor in open_streams:
        poller.register(descriptor, select.POLLIN)
    while not output.is_too_long:
        seconds_left = deadline - time.monotonic()
        if seconds_left <= 0:
            break
        poll_seconds = seconds_left
        if stdout.fileno() not in open_streams:
            # The program has closed its stdout, but a process that it started may keep stderr open for long: read
            # only the errors that were already printed.
            poll_seconds = 0.0
        ready = poller.poll(1000 * poll_seconds)
        if not ready:
            break
        for descriptor, _ in ready:
            block = os.read(descriptor, _BLOCK_BYTES)
            if block:
                open_streams[descriptor] += block
            else:
                poller.unregister(descriptor)
                del open_streams[descriptor]
    return output


def _failure_reason(code: int, printed: str, errors: str) -> str:
    """The exit code, followed by the line of the program's output that is most likely to name the error.

    Tools such as nvidia-smi print their error on stdout, first. Other programs print it on stderr, in the last line:
    it may follow warnings, and a traceback ends with its error.
    """
    reason = f"failed with exit code {code}"
    if printed.strip():
        return f"{reason}: {first_line(printed)}"
    if errors.strip():
        last_line = errors.strip().splitlines()[-1]
        return f"{reason}: {last_line.strip()}"
    return reason


def first_line(text: str) -> str:
    """The first line of a text that is not empty."""
    return text.strip().partition("\n")[0].strip()
