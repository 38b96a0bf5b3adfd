"""The two clocks of a step: host times, and events that are reused and never waited for."""

from __future__ import annotations

import pytest
import torch

from flagbench_cases.rank.stopwatch import CudaClock

pytestmark = pytest.mark.image


class Event:
    """What a CUDA event answers, with a count of what was made."""

    made = 0

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        Event.made += 1
        self.recorded = 0

    def record(self) -> None:
        self.recorded += 1

    def query(self) -> bool:
        return self.recorded > 1

    def elapsed_time(self, end: Event) -> float:
        return 250.0

    def synchronize(self) -> None:
        raise AssertionError("an event was waited for")


def test_the_cuda_clock_reuses_events_and_speaks_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    Event.made = 0
    clock = CudaClock()
    start, end = clock.mark(), clock.mark()
    assert clock.reached(end) is False
    assert clock.seconds(start, end) == 0.25
    clock.release([start, end])
    again = clock.mark()
    assert again in (start, end)
    assert clock.reached(again) is True
    assert Event.made == 2
