"""What tests of the image side's modules share."""

from __future__ import annotations

import pytest

from flagbench_cases.rank import step_timer, stopwatch, train_loop
from unit.cases.rank.toy_loop import Time


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    for module in (step_timer, stopwatch, train_loop):
        monkeypatch.setattr(module, "now", made)
    monkeypatch.setattr(step_timer, "DRAIN_SECONDS", float("inf"))
    return made
