"""Several requests to a server at a time, none of which outlives an error or Ctrl-C by much."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Any, TypeVar

WORKERS = 8
"""Requests under way; a part of a file has 8 MiB in memory, 64 MiB in all."""
_GRACE = 5.0
"""Seconds for the requests under way to end after an error."""
Result = TypeVar("Result")


def run_all(
    tasks: Iterable[Callable[[], Result]], workers: int = WORKERS, stopped: threading.Event | None = None
) -> list[Result]:
    """The results of tasks that run on several threads, in the order of the tasks.

    The first error, or Ctrl-C, sets `stopped`, ends tasks that have not begun, gives the others five seconds, and is
    raised. The threads are daemons, unlike those of a ThreadPoolExecutor: a server may take minutes to answer, and
    neither an error nor the end of the process waits for that. What a task needs may then be closed before it ends.
    """
    pairs: list[tuple[Callable[[], Result], Future[Any]]] = [(task, Future()) for task in tasks]
    futures = [future for _, future in pairs]
    left = iter(pairs)  # of a list, so threads may share it
    stopped = stopped or threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        for task, future in left:
            if stopped.is_set() or not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(task())
            except BaseException as error:
                errors.append(error)
                stopped.set()
                future.set_exception(error)

    try:
        for _ in range(min(workers, len(pairs))):
            try:
                threading.Thread(target=work, daemon=True).start()
            except RuntimeError:  # no more threads for this user: this one helps those that were started
                work()
                break
        wait(futures, return_when=FIRST_EXCEPTION)
        if errors:
            raise errors[0]
        return [each.result() for each in futures]
    finally:
        stopped.set()
        wait([each for each in futures if not each.cancel()], _GRACE)
