"""What tests of the image side's modules share."""

from __future__ import annotations

import pytest

from flagbench_cases.rank import stopwatch as clock_module
from flagbench_cases.rank import train_loop as loop_module
from unit.cases.toy_loop import Time


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(loop_module, "now", made)
    monkeypatch.setattr(clock_module, "now", made)
    monkeypatch.setattr(loop_module, "DRAIN_SECONDS", float("inf"))
    return made
