"""Several requests at a time: in order, ended by the first error, and never waited for much longer."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from flagbench.s3.threads import run_all


def test_results_are_in_the_order_of_the_tasks() -> None:
    def task(number: int) -> int:
        time.sleep(0.01 * (4 - number))
        return number

    assert run_all([partial(task, number) for number in range(4)]) == [0, 1, 2, 3]
    assert run_all([]) == []


def test_an_error_ends_what_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flagbench.s3.threads._GRACE", 0.01)
    begun: list[int] = []
    silent, stopped = threading.Event(), threading.Event()

    def task(number: int) -> None:
        begun.append(number)
        if number == 0:
            silent.wait(30)  # a server that does not answer
        raise OSError(f"the task {number}")

    try:
        with pytest.raises(OSError, match="the task 1"):
            run_all([partial(task, number) for number in range(9)], 2, stopped)
        assert stopped.is_set()
        assert len(begun) < 9
    finally:
        silent.set()


@pytest.mark.parametrize("allowed", [0, 1])
def test_a_user_without_threads_left(monkeypatch: pytest.MonkeyPatch, allowed: int) -> None:
    real, started = threading.Thread.start, []

    def start(thread: threading.Thread) -> None:
        if len(started) == allowed:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    assert run_all([partial(int, number) for number in range(20)]) == [*range(20)]
