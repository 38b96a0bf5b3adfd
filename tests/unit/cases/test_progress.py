"""What a person sees on stderr while a run goes on."""

from __future__ import annotations

import io

import pytest

from flagbench_cases import progress
from flagbench_cases.progress import Bar, render
from flagbench_cases.spool import Progress

pytestmark = pytest.mark.image

NAN = float("nan")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at(phase: str = "train", done: int = 0, total: int = 0, loss: float = NAN) -> Progress:
    return Progress(phase, done, total, done, loss, done)


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (at("init"), "init   "),
        (at("train", 0, 4), "train  [" + "." * 28 + "] 0/4"),
        (at("train", 2, 4, 0.43214), "train  [" + "#" * 14 + "." * 14 + "] 2/4  loss 0.4321"),
        (at("eval", 9, 4), "eval   [" + "#" * 28 + "] 9/4"),
        (at("train", 1, 0, float("inf")), "train  "),
    ],
)
def test_a_state_as_text(state: Progress, text: str) -> None:
    assert render(state) == text


def test_a_terminal_is_drawn_in_place_and_left_clean() -> None:
    stream = Terminal()
    bar = Bar(stream)
    bar.show(at("train", 1, 2))
    bar.show(at("train", 2, 2))
    assert stream.getvalue().count("\n") == 0
    assert stream.getvalue().count("\r\x1b[2K") == 2
    bar.end()
    bar.end()
    assert stream.getvalue().endswith("2/2\r\x1b[2K")


def test_a_log_gets_a_line_at_each_phase_and_then_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    stream = io.StringIO()
    bar = Bar(stream)
    for phase, seconds in (("init", 0.0), ("init", 9.9), ("init", 0.1), ("train", 0.1), ("train", 5.0)):
        clock[0] += seconds
        bar.show(at(phase))
    bar.end()
    assert stream.getvalue().split("\n") == ["flagbench: init   ", "flagbench: init   ", "flagbench: train  ", ""]
    assert "\x1b" not in stream.getvalue()


def test_a_rank_that_has_not_begun_is_not_drawn() -> None:
    stream = Terminal()
    Bar(stream).show(None)
    assert stream.getvalue() == ""


def test_a_terminal_that_goes_away_does_not_end_the_run() -> None:
    class Gone(Terminal):
        def write(self, text: str) -> int:
            raise OSError("Input/output error")

    bar = Bar(Gone())
    bar.show(at("train", 1, 2))
    bar.end()
    assert bar.live is False
