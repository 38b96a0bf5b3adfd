"""What a conversion shows of itself: in place on a terminal, a line for each phase elsewhere."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from flagbench_cases.prepare import meter
from flagbench_cases.prepare.meter import Meter, line

pytestmark = pytest.mark.image


class Terminal(io.StringIO):
    """A stream that says that it is one."""

    def isatty(self) -> bool:
        return True


class Clock:
    """Time that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(meter, "time", made)
    return made


def test_elsewhere_a_phase_is_a_line_and_a_long_one_more(clock: Clock) -> None:
    stream = io.StringIO()
    meter = Meter(stream)
    meter.subject = "data"
    for done in range(0, 101):
        clock.now = done / 4
        meter("examples", done, 100)
    meter("sums", 5, 5, "bytes")
    meter.end_phase()
    assert stream.getvalue().splitlines() == [
        "flagbench: data: examples 40/100",
        "flagbench: data: examples 80/100",
        "flagbench: data: examples 100/100",
        "flagbench: data: sums 5 bytes of 5 bytes",
    ]


def test_on_a_terminal_a_phase_is_drawn_in_place(clock: Clock) -> None:
    stream = Terminal()
    meter = Meter(stream)
    for done in range(5):
        clock.now += 0.06
        meter("examples", done, 0)
    meter.end_phase()
    drawn = stream.getvalue().split("\r\x1b[2K")
    assert drawn[-1].endswith("\n")
    assert stream.getvalue().count("\n") == 1
    assert 2 <= len(drawn) - 1 < 5, "no more often than one can see"


def test_the_rate_is_of_the_bytes_that_were_written(clock: Clock, tmp_path: Path) -> None:
    stream = io.StringIO()
    meter = Meter(stream)
    meter.folder = str(tmp_path)
    (tmp_path / "before").write_bytes(bytes(500))
    meter("examples", 0, 2)
    (tmp_path / "a.bin").write_bytes(bytes(3000))
    clock.now = 2.0
    meter("examples", 2, 2)
    meter.end_phase()
    assert stream.getvalue() == "flagbench: examples 2/2, 1.5 kB/s\n"


def test_the_rate_is_that_of_the_last_seconds(clock: Clock) -> None:
    """What an earlier download left counts as done at once, and does not promise an early end."""
    stream = io.StringIO()
    meter = Meter(stream)
    meter("fetch", 0, 10**9, "bytes")
    for second in range(1, 101):
        clock.now = float(second)
        meter("fetch", 5 * 10**8 + second * 10**6, 10**9, "bytes")
    assert "flagbench: fetch 600.0 MB of 1.0 GB, 1.0 MB/s, 6:40 left" in stream.getvalue().splitlines()


def test_a_reader_who_is_gone_does_not_matter(clock: Clock) -> None:
    stream = Terminal()
    meter = Meter(stream)
    stream.close()
    clock.now = 1.0
    meter("examples", 1, 1)
    meter.end_phase()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("data", "examples", 3, 7, "", 0.0), "data: examples 3/7"),
        (("", "examples", 3, 0, "", 0.0), "examples 3"),
        (("data", "sums", 1500, 3000, "bytes", 2e6), "data: sums 1.5 kB of 3.0 kB, 2.0 MB/s"),
        (("data", "fetch", 10**9, 10**10, "bytes", 1e8), "data: fetch 1.0 GB of 10.0 GB, 100.0 MB/s, 1:30 left"),
        (("data", "fetch", 0, 10**13, "bytes", 1e9), "data: fetch 0 bytes of 10000.0 GB, 1.0 GB/s, 2:46:40 left"),
        (("", "fetch", 5, 10, "bytes", 0.0, True), "fetch [##########..........] 5 bytes of 10 bytes"),
        (("data", "sum of a\x1b\n", 1, 0, "bytes", 0.0), "data: sum of a?? 1 bytes"),
    ],
)
def test_lines(words: tuple, text: str) -> None:
    assert line(*words) == text
