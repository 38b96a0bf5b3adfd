"""Short queries of other programs, such as git and nvidia-smi, with a time limit."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import IO

PATIENCE_S = 10.0
"""Seconds that an answer may take by default."""
_MOST_BYTES = 1 << 20


class Ending(str, Enum):
    """How a question to a program ended."""

    MISSING = "missing"
    """The program is not installed."""
    ANSWERED = "answered"
    FAILED = "failed"
    """It ended with an error, or could not be started."""
    NO_ANSWER = "no answer"
    """It did not end in time."""


@dataclass(frozen=True)
class Answer:
    """What a program answered."""

    ending: Ending
    text: str = ""
    """What it printed on stdout, also before it failed."""
    problem: str | None = None
    """Why it failed, to follow its name, with its own first words; None if it answered."""
    code: int | None = None
    """Its exit code; None if it did not end by itself."""


def ask(command: Sequence[str], seconds: float | None = None, **variables: str) -> Answer:
    """Run a command to its end. A process that hangs in the kernel is not waited for.

    Args:
        command: the program and its arguments.
        seconds: that it may take; PATIENCE_S by default.
        variables: of its environment, beside those of this process.
    """
    import subprocess  # most commands ask nothing

    if seconds is None:
        seconds = PATIENCE_S
    deadline = time.monotonic() + seconds
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "LC_ALL": "C", **variables},
        )
    except OSError as error:
        return Answer(Ending.FAILED, problem=f"cannot be started: {error.strerror or error}")
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        printed, errors = _read(process.stdout, process.stderr, deadline)
    too_much = len(printed) + len(errors) > _MOST_BYTES
    if too_much:
        deadline = time.monotonic()
    code: int | None = None
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = process.wait(max(0.0, deadline - time.monotonic()))
    if code is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
    if too_much:
        return Answer(Ending.FAILED, problem="printed too much")
    if code is None:
        return Answer(Ending.NO_ANSWER, problem=f"did not answer within {seconds:g} s")
    text = printed.decode("utf-8", "replace")
    if code:
        return Answer(Ending.FAILED, text, _reason(code, text, errors.decode("utf-8", "replace")), code)
    return Answer(Ending.ANSWERED, text, code=code)


def _read(stdout: IO[bytes], stderr: IO[bytes], deadline: float) -> tuple[bytearray, bytearray]:
    """What is printed on both until stdout is closed, the deadline, or more than _MOST_BYTES together."""
    import select

    printed, errors = bytearray(), bytearray()
    open_streams = {stdout.fileno(): printed, stderr.fileno(): errors}
    waiting = select.poll()
    for number in open_streams:
        waiting.register(number, select.POLLIN)
    while len(printed) + len(errors) <= _MOST_BYTES:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        if stdout.fileno() not in open_streams:
            left = 0.0  # something that the program started may keep stderr open: it is read as far as it goes
        ready = waiting.poll(1000 * left)
        if not ready:
            break
        for number, _ in ready:
            block = os.read(number, 1 << 16)
            if block:
                open_streams[number] += block
            else:
                waiting.unregister(number)
                del open_streams[number]
    return printed, errors


def _reason(code: int, printed: str, errors: str) -> str:
    """The exit code with the first line on stdout, else the last one on stderr: a traceback ends with its error."""
    reason = f"failed with exit code {code}"
    if printed.strip():
        return f"{reason}: {first_line(printed)}"
    if errors.strip():
        return f"{reason}: {errors.strip().splitlines()[-1].strip()}"
    return reason


def first_line(text: str) -> str:
    """The first line of a text that is not empty."""
    return text.strip().partition("\n")[0].strip()
