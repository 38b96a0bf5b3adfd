"""Runs what waits for a network in a thread, so that signals are handled meanwhile."""

from __future__ import annotations

import queue
import sys
import threading
import time
from typing import Any, Callable, TypeVar

from flagbench_cases.shared.errors import CaseError
from flagbench_cases.shared.interruption import Interruption
from flagbench_core.exit_codes import ExitCode

Result = TypeVar("Result")
_POLL_SECONDS = 0.05


def run(task: Callable[[], Result], interruption: Interruption, patience: float, doing: str) -> Result:
    """The result of a task, or what it raises.

    After a signal, even one before this call, it is given `patience` seconds and then abandoned: CaseError
    (INTERRUPTED), whose message begins with `doing`. A second signal abandons it at once, by KeyboardInterrupt.
    """
    answers: queue.Queue[tuple[bool, Any]] = queue.Queue()

    def work() -> None:
        try:
            answers.put((True, task()))
        except BaseException as error:
            answers.put((False, error))

    if interruption and patience <= 0:
        raise _abandoned(interruption, doing)
    try:
        threading.Thread(target=work, daemon=True).start()
    except RuntimeError:  # no more threads for this user
        return task()
    try:
        done, value = _answer(answers, interruption, patience, doing)
    except (CaseError, KeyboardInterrupt):
        interruption.abandon_threads()
        raise
    if not done:
        raise value
    return value


def _answer(
    answers: queue.Queue[tuple[bool, Any]], interruption: Interruption, patience: float, doing: str
) -> tuple[bool, Any]:
    deadline = None
    while True:
        try:
            return answers.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            if interruption and deadline is None:
                deadline = time.monotonic() + patience
            if deadline is not None and time.monotonic() >= deadline:
                raise _abandoned(interruption, doing) from None


def _abandoned(interruption: Interruption, doing: str) -> CaseError:
    return CaseError(f"{doing} was {interruption.reason}", "run again", ExitCode.INTERRUPTED)


def say(text: str) -> None:
    """Print a line of progress on stderr."""
    sys.stderr.write(f"flagbench: {text}\n")
    sys.stderr.flush()
