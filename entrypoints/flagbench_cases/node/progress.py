"""Progress on stderr: one updating line on a terminal, otherwise a line every few seconds. No escape sequences."""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from typing import Callable, Mapping, TextIO

from flagbench_cases.shared.spool import Heartbeat

WIDTH = 28
QUIET_SECONDS = 10.0
RATE_SECONDS = 30.0
"""The rate is averaged over this many seconds."""
MODE = "FLAGBENCH_PROGRESS"
"""Forces `live` or `lines`. `flagbench run` sets it in a container whose stderr is forwarded to a terminal."""
STEPPING = ("warmup", "train", "val", "infer")
LAUNCH = Heartbeat("launch", 0, 0, 0, float("nan"), 0)
"""The phase before rank 0 has started."""


def say(text: str) -> None:
    """Print a line on stderr, such as what this node waits for or where it stored its results."""
    sys.stderr.write(f"flagbench: {text}\n")
    sys.stderr.flush()


class Bar:
    """Displays rank 0's progress, with the time since this object was created."""

    def __init__(
        self,
        stream: TextIO | None = None,
        sensors: Callable[[], str] | None = None,
        at_most: bool = False,
        unit: str = "step",
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """`sensors` returns the devices' power and temperature as text; `at_most`: the run may end before its
        total; `unit`: that of its progress, `step` or `lap`."""
        self.stream = stream if stream is not None else sys.stderr
        self._environment = environment
        self.live = self._is_live()
        self._sensors = sensors
        self._at_most = at_most
        self._unit = unit
        self._began = time.monotonic()
        self._drawn = ""
        self._phase = ""
        self._last = float("-inf")
        self._done = 0
        self._read_at, self._sensed = float("-inf"), ""
        self._seen: deque[tuple[float, int]] = deque()

    def _is_live(self) -> bool:
        if self._environment.get(MODE) in ("live", "lines"):
            return self._environment[MODE] == "live"
        return self.stream.isatty() and self._environment.get("TERM", "dumb") not in ("dumb", "")

    def show(self, progress: Heartbeat | None) -> None:
        """Display the state: in place on a terminal, otherwise at every new phase and every ten seconds."""
        progress = progress or LAUNCH
        if progress.phase in STEPPING and progress.done < progress.steps:
            # After an evaluation the spool counts from 0 until the next step is done.
            progress = progress._replace(done=progress.steps)
        clock = time.monotonic()
        rate = self._rate(progress, clock)
        if not self.live and progress.phase == self._phase and not self._is_due(progress, clock):
            return
        self._phase, self._last, self._done = progress.phase, clock, progress.done
        facts = timing(progress, clock - self._began, rate, self._at_most, self._unit)
        columns = self._columns() if self.live else None
        text = render(progress, facts, self._sensor_text(clock), columns)
        if not self.live:
            self._write(f"flagbench: {text}\n")
        elif text != self._drawn:
            self._write(f"\r{text}{' ' * (len(self._drawn) - len(text))}")
            self._drawn = text

    def end(self) -> None:
        """Clear the line."""
        if self._drawn:
            self._write(f"\r{' ' * len(self._drawn)}\r")
            self._drawn = ""

    def _is_due(self, progress: Heartbeat, clock: float) -> bool:
        """Whether a line is due within a phase: after each lap, else every QUIET_SECONDS."""
        if self._unit == "lap":
            return progress.done != self._done
        return clock - self._last >= QUIET_SECONDS

    def _rate(self, progress: Heartbeat, clock: float) -> float | None:
        """Units per second over the last RATE_SECONDS of this phase; None until two values are known."""
        values = self._seen
        if progress.phase != self._phase or (values and progress.done < values[-1][1]):
            values.clear()
        if not values or progress.done != values[-1][1]:
            values.append((clock, progress.done))
        while len(values) > 2 and clock - values[0][0] > RATE_SECONDS:
            values.popleft()
        (first, begun), (last, done) = values[0], values[-1]
        if done <= begun or last <= first:
            return None
        return (done - begun) / (last - first)

    def _sensor_text(self, clock: float) -> str:
        """The text of `sensors`, read at most once a second, the sampling rate."""
        if self._sensors is not None and clock - self._read_at >= 1.0:
            self._read_at, self._sensed = clock, self._sensors()
        return self._sensed

    def _columns(self) -> int:
        try:
            return int(self._environment.get("COLUMNS") or os.get_terminal_size(self.stream.fileno()).columns) or 80
        except (OSError, ValueError):
            return 80

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):
            self.live = False


def render(progress: Heartbeat, facts: str = "", sensors: str = "", columns: int | None = None) -> str:
    """`train  [##....] 12/31  loss 0.4321  0:12  9.8 steps/s  ETA 0:19  312 W  64 C`, cut to `columns`."""
    head, tail = f"{progress.phase:<6} ", ""
    if progress.total:
        tail = f" {progress.done}/{progress.total}"
    if math.isfinite(progress.loss):
        if progress.phase in STEPPING:
            tail += f"  loss {progress.loss:.4f}"
        elif not progress.total:
            # Once the steps are over this is beside the record's loss, the mean of the last ones. An evaluation's bar
            # needs the space.
            tail += f"  loss of the last step {progress.loss:.4f}"
    for words in (facts, sensors):
        if words:
            tail += "  " + words
    width = WIDTH
    if columns is not None:
        # The last column stays free, or the terminal would wrap.
        width = min(width, columns - 3 - len(head) - len(tail))
    if progress.total and width > 0:
        filled = int(width * min(1.0, progress.done / progress.total))
        head += f"[{'#' * filled}{'.' * (width - filled)}]"
    if not progress.total:
        tail = tail.lstrip()
    text = head + tail
    if columns is None:
        return text
    return text[: max(columns - 1, 0)]


def timing(progress: Heartbeat, elapsed: float, rate: float | None, at_most: bool = False, unit: str = "step") -> str:
    """`0:12  9.8 steps/s  ETA 0:19`, as far as known."""
    words = [clock_text(elapsed)]
    if rate is None:
        return words[0]
    if rate >= 1:
        words.append(f"{rate:.3g} {unit}s/s")
    else:
        words.append(f"{1 / rate:.3g} s/{unit}")
    if progress.total > progress.done:
        left = clock_text((progress.total - progress.done) / rate)
        if at_most:
            left = f"< {left}"
        words.append(f"ETA {left}")
    return "  ".join(words)


def clock_text(seconds: float) -> str:
    """`0:07`, `12:34`, `1:02:03`, `3d 04:05:06`."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02d}:{minute:02d}:{second:02d}"
    if hour:
        return f"{hour}:{minute:02d}:{second:02d}"
    return f"{minute}:{second:02d}"
