"""What a conversion or transfer shows of itself: in place on a terminal, a line for each phase elsewhere."""

from __future__ import annotations

import io

import pytest

from flagbench_cases.prepare import progress
from flagbench_cases.prepare.progress import Progress

pytestmark = pytest.mark.image


class Terminal(io.StringIO):
    """A stream that says that it is one."""

    def isatty(self) -> bool:
        return True


class Clock:
    """Time that a test sets."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def test_elsewhere_a_phase_is_a_line_and_a_long_one_more(clock: Clock) -> None:
    stream = io.StringIO()
    shown = Progress(stream)
    shown.begin("data")
    for done in range(0, 101):
        clock.now = done / 4
        shown("examples", done, 100)
    shown("sums", 5, 5, "bytes")
    shown.end_phase()
    assert stream.getvalue().splitlines() == [
        "flagbench: data: examples 40/100",
        "flagbench: data: examples 80/100",
        "flagbench: data: examples 100/100",
        "flagbench: data: sums 5 bytes of 5 bytes",
    ]


def test_on_a_terminal_a_phase_is_drawn_in_place(clock: Clock) -> None:
    stream = Terminal()
    shown = Progress(stream)
    for done in range(5):
        clock.now += 0.06
        shown("examples", done, 0)
    shown.end_phase()
    drawn = stream.getvalue().split("\r\x1b[2K")
    assert drawn[-1] == "examples 4\n"
    assert 2 <= len(drawn) - 1 < 5, "no more often than one can see"


def test_a_reader_who_is_gone_does_not_matter(clock: Clock) -> None:
    stream = Terminal()
    shown = Progress(stream)
    stream.close()
    shown("examples", 1, 1)
    shown.end_phase()
