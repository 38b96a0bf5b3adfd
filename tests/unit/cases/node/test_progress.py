"""What a person sees on stderr while a run goes on."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from flagbench_cases.node import progress
from flagbench_cases.node.progress import Bar, clock_text, render
from flagbench_cases.shared.spool import Heartbeat
from flagbench_cases.telemetry.latest import sensors_text

pytestmark = pytest.mark.image

NAN = float("nan")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at(phase: str = "train", done: int = 0, total: int = 0, loss: float = NAN) -> Heartbeat:
    return Heartbeat(phase, done, total, done, loss, done)


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (at("init"), "init   "),
        (at("train", 0, 4), "train  [" + "." * 28 + "] 0/4"),
        (at("measure", 0, 4), "measure [" + "." * 28 + "] 0/4"),
        (at("train", 2, 4, 0.43214), "train  [" + "#" * 14 + "." * 14 + "] 2/4  loss 0.4321"),
        (at("done", 0, 0, 0.43214), "done   loss of the last step 0.4321"),
        (at("eval", 2, 4, 0.43214), "eval   [" + "#" * 14 + "." * 14 + "] 2/4"),
        (at("eval", 9, 4), "eval   [" + "#" * 28 + "] 9/4"),
        (at("train", 1, 0, float("inf")), "train  "),
    ],
)
def test_a_state_as_text(state: Heartbeat, text: str) -> None:
    assert render(state) == text


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the bar sees, seconds; a test sets it."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def bar(stream: io.StringIO, **environment: str) -> Bar:
    return Bar(stream, environment={"TERM": "xterm", "COLUMNS": "80", **environment})


def screen(written: str) -> str:
    """The line that a terminal shows after `written`."""
    line: list[str] = []
    column = 0
    for character in written:
        if character == "\r":
            column = 0
            continue
        assert character.isprintable()
        line[column : column + 1] = [character]
        column += 1
    return "".join(line).rstrip()


def test_a_terminal_is_drawn_in_place_and_left_clean(clock: list[float]) -> None:
    stream = Terminal()
    drawn = bar(stream)
    drawn.show(at("train", 1, 2, 0.25))
    assert screen(stream.getvalue()) == "train  [" + "#" * 14 + "." * 14 + "] 1/2  loss 0.2500  0:00"
    drawn.show(at("eval"))
    assert screen(stream.getvalue()) == "eval   0:00"
    drawn.end()
    drawn.end()
    assert screen(stream.getvalue()) == ""


def test_time_rate_and_what_is_left(clock: list[float]) -> None:
    stream = Terminal()
    drawn = bar(stream)
    for seconds, done in ((0.0, 0), (0.0, 10), (5.0, 20), (5.0, 30)):
        clock[0] += seconds
        drawn.show(at("train", done, 130))
    assert screen(stream.getvalue()).endswith(" 30/130  0:10  3 steps/s  ETA 0:33")
    clock[0] += 40.0
    drawn.show(at("train", 32, 130))
    assert screen(stream.getvalue()).endswith(" 32/130  0:50  20 s/step  ETA 32:40"), "the rate follows a change"
    drawn.show(at("eval"))
    drawn.show(Heartbeat("train", 0, 130, 32, NAN, 1))
    assert screen(stream.getvalue()).endswith(" 32/130  0:50"), "training goes on where an evaluation came between"
    clock[0] += 2.0
    drawn.show(at("train", 34, 130))
    assert "  1 steps/s  " in screen(stream.getvalue())


@pytest.mark.parametrize("columns", [0, 7, 33, 200])
def test_a_line_never_wraps(columns: int) -> None:
    text = render(at("train", 2, 4, 0.4), "0:12  9.8 steps/s  ETA 0:19", "312 W  64 C", columns)
    assert len(text) <= max(columns - 1, 0)
    assert ("#" in text) == (columns > 75)


@pytest.mark.parametrize(
    ("terminal", "environment", "live"),
    [
        (True, {"TERM": "xterm"}, True),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, True),  # nothing is coloured
        (True, {"TERM": "dumb"}, False),
        (False, {"TERM": "xterm"}, False),
        (False, {"FLAGBENCH_PROGRESS": "live"}, True),  # a container whose output ends on a terminal
        (True, {"TERM": "xterm", "FLAGBENCH_PROGRESS": "lines"}, False),
        (True, {"TERM": "xterm", "FLAGBENCH_PROGRESS": "other"}, True),
    ],
)
def test_what_is_drawn_in_place(terminal: bool, environment: dict[str, str], live: bool) -> None:
    stream = Terminal() if terminal else io.StringIO()
    Bar(stream, environment=environment).show(at("init"))
    assert stream.getvalue().startswith("\r" if live else "flagbench: init")
    assert "\x1b" not in stream.getvalue()


def test_a_log_gets_a_line_at_each_phase_and_then_rarely(clock: list[float]) -> None:
    stream = io.StringIO()
    drawn = bar(stream)
    for phase, seconds in (("init", 0.0), ("init", 9.9), ("init", 0.1), ("train", 0.1), ("train", 5.0)):
        clock[0] += seconds
        drawn.show(at(phase))
    drawn.end()
    lines = stream.getvalue().split("\n")
    assert lines == ["flagbench: init   0:00", "flagbench: init   0:10", "flagbench: train  0:10", ""]


def test_a_terminal_that_goes_away_does_not_end_the_run() -> None:
    class Gone(Terminal):
        def write(self, text: str) -> int:
            raise OSError("Input/output error")

    drawn = bar(Gone())
    drawn.show(at("train", 1, 2))
    drawn.end()
    assert drawn.live is False


@pytest.mark.parametrize(("seconds", "text"), [(59.9, "0:59"), (3723, "1:02:03"), (273845, "3d 04:04:05")])
def test_times(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text


def test_the_newest_sample_of_a_file_that_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    assert sensors_text(str(path)) == ""
    device = {"index": 0, "power_w": 300.4, "temperature_c": 60}
    lines = [
        {"kind": "start", "t": 1.0, "devices": [device]},
        {"kind": "sample", "t": 2.0, "devices": [{**device, "power_w": 100.0}]},
        {"kind": "sample", "t": 3.0, "devices": [device, {**device, "index": 1, "temperature_c": 64}]},
        {"kind": "error", "t": 3.5},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "sample", "t": 4.0, "dev')
    assert sensors_text(str(path)) == "601 W  64 C"
    path.write_text(json.dumps({"kind": "sample", "t": 1.0, "cpu": {"util": 0.5}, "devices": []}) + "\n")
    assert sensors_text(str(path)) == ""


def test_laps_have_a_line_each(clock: list[float]) -> None:
    stream = io.StringIO()
    shown = Bar(stream, unit="lap", environment={})
    for seconds, laps in ((0, 0), (40, 0), (60, 1), (61, 1), (120, 2)):
        clock[0] = 100.0 + seconds
        shown.show(at("measure", laps, 10))
    lines = stream.getvalue().splitlines()
    assert [line.split("] ")[1].split()[0] for line in lines] == ["0/10", "1/10", "2/10"]
    assert lines[2].endswith("  2:00  60 s/lap  ETA 8:00")
