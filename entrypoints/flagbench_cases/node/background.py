"""Runs a task that waits for a network in a thread, so that the main thread can react to signals meanwhile.

Python handles signals in the main thread only, and a library that waits for a server may not return for minutes. The
delivery of results and the check of the store before a run use this module.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Any, Callable, NamedTuple, TypeVar

from flagbench_cases.shared.errors import CaseError
from flagbench_cases.shared.interruption import Interruption
from flagbench_core.exit_codes import ExitCode

Result = TypeVar("Result")
_POLL_SECONDS = 0.05
"""How often a signal is looked for: a person who presses Ctrl-C does not notice this delay."""


class _Outcome(NamedTuple):
    """The end of a task: its result, or the exception that it raised."""

    result: Any
    error: BaseException | None


def run(task: Callable[[], Result], interruption: Interruption, patience: float, doing: str) -> Result:
    """Run a task in a thread, and return its result or raise what it raises.

    If this process cannot start a thread, the task runs in the main thread, and a signal waits for its end.

    Args:
        task: the function to call.
        interruption: the signals received so far. One that was received before this call counts too.
        patience: seconds that the task may go on after a signal. Then it is abandoned: its thread goes on, and this
            process will end without waiting for it.
        doing: what the task does, such as "the upload to s3://results"; the subject of the error's message.

    Raises CaseError (INTERRUPTED) if the task was abandoned after a signal, and KeyboardInterrupt at once after a
    second signal.
    """
    if interruption.received and patience <= 0:
        raise _abandoned(interruption, doing)
    outcomes: queue.Queue[_Outcome] = queue.Queue()

    def run_task() -> None:
        try:
            outcomes.put(_Outcome(task(), None))
        except BaseException as error:  # raised again in the main thread
            outcomes.put(_Outcome(None, error))

    try:
        threading.Thread(target=run_task, daemon=True).start()
    except RuntimeError:  # The user has as many threads as the system allows.
        return task()
    try:
        outcome = _wait_for_outcome(outcomes, interruption, patience, doing)
    except (CaseError, KeyboardInterrupt):
        interruption.abandon_threads()
        raise
    if outcome.error is not None:
        raise outcome.error
    result: Result = outcome.result
    return result


def _wait_for_outcome(
    outcomes: queue.Queue[_Outcome], interruption: Interruption, patience: float, doing: str
) -> _Outcome:
    """Wait for the end of the task; raise CaseError if it has not ended `patience` seconds after a signal."""
    deadline = None
    while True:
        try:
            return outcomes.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            pass
        if interruption.received and deadline is None:
            deadline = time.monotonic() + patience
        if deadline is not None and time.monotonic() >= deadline:
            raise _abandoned(interruption, doing)


def _abandoned(interruption: Interruption, doing: str) -> CaseError:
    """Return the error for a task that was abandoned after a signal."""
    return CaseError(f"{doing} was {interruption.reason}", "run again", ExitCode.INTERRUPTED)
