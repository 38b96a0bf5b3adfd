"""Progress of a conversion on stderr: one updating line on a terminal, otherwise a line every few seconds."""

import os
import sys
import time
from collections import deque
from typing import Deque, Optional, TextIO, Tuple

from flagbench_cases.prepare.writer import readable

QUIET_SECONDS = 10.0
LIVE_SECONDS = 0.1
MIN_RATE_SECONDS = 0.2  # below this a rate is meaningless
RATE_SECONDS = 30.0
"""The rate is averaged over this many seconds."""
WIDTH = 20


class Meter:
    """Called with a phase, the amount done and the total amount (0 if unknown).

    The amounts are in a unit of the case, and the rate is that of bytes written; with the unit `bytes`, both are in
    bytes.
    """

    def __init__(self, stream: Optional[TextIO] = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._live = self._stream.isatty()
        self.subject = ""
        """What is being prepared, the prefix of every line."""
        self.folder: Optional[str] = None
        """The output folder, for the rate."""
        self._phase = ""
        self._text = ""
        self._shown = ""
        self._last = 0.0
        self._written = 0
        self._seen: Deque[Tuple[float, int]] = deque()

    def __call__(self, phase: str, done: int, total: int, unit: str = "") -> None:
        """Update the state, and show it if due."""
        clock = time.monotonic()
        if phase != self._phase:
            self.end_phase()
            self._phase, self._last = phase, clock
            self._written = self._bytes_written()
            self._seen.clear()
            self._seen.append((clock, done if unit == "bytes" else 0))
        wait = LIVE_SECONDS if self._live else QUIET_SECONDS
        finished = bool(total) and done >= total
        if finished or clock - self._last >= wait or not self._text:
            read = done if unit == "bytes" else self._bytes_written() - self._written
            self._text = line(self.subject, phase, done, total, unit, self._rate(clock, read), self._live)
            if self._live or clock - self._last >= wait:
                self._last = clock
                self._show()

    def end_phase(self) -> None:
        """Show the final state of the phase and end its line."""
        if self._text and (self._live or self._text != self._shown):
            self._show()
        if self._text and self._live:
            self._write("\n")
        self._phase = self._text = self._shown = ""

    def say(self, text: str) -> None:
        """Show a line of its own, once."""
        self.end_phase()
        self._write("flagbench: %s\n" % printable(text))

    def _show(self) -> None:
        self._shown = self._text
        self._write("\r\x1b[2K" + self._text if self._live else "flagbench: %s\n" % self._text)

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._live = False

    def _rate(self, clock: float, amount: int) -> float:
        """Bytes per second over the last RATE_SECONDS of this phase; 0 if not known yet."""
        self._seen.append((clock, amount))
        while clock - self._seen[0][0] > RATE_SECONDS:
            self._seen.popleft()
        begun, before = self._seen[0]
        return (amount - before) / (clock - begun) if clock - begun >= MIN_RATE_SECONDS else 0.0

    def _bytes_written(self) -> int:
        """Size of the files in the folder, bytes."""
        if self.folder is None:
            return 0
        try:
            with os.scandir(self.folder) as entries:
                return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
        except OSError:
            return self._written


def line(subject: str, phase: str, done: int, total: int, unit: str, rate: float, bar: bool = False) -> str:
    """`data: fetch [####......] 1.2 GB of 3.1 GB, 34.1 MB/s, 0:55 left`; the bar only if asked for.

    The rate (bytes per second) is omitted if nothing is written, the time left if the total is not known in bytes.
    """
    drawn, left = "", ""
    if unit == "bytes":
        amount = "%s of %s" % (readable(done), readable(total)) if total else readable(done)
        if bar and total:
            filled = min(WIDTH, WIDTH * done // total)
            drawn = "[%s%s] " % ("#" * filled, "." * (WIDTH - filled))
        if rate >= 1 and total - done >= rate:
            left = ", %s left" % _duration((total - done) / rate)
    else:
        amount = "%d/%d" % (done, total) if total else "%d" % done
    text = "%s%s %s%s" % ("%s: " % subject if subject else "", phase, drawn, amount)
    return printable(text + (", %s/s" % readable(rate) if rate >= 1 else "") + left)


def _duration(seconds: float) -> str:
    """`0:55`, `1:02:03`."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return "%d:%02d:%02d" % (hours, minute, second) if hours else "%d:%02d" % (minute, second)


def printable(text: str) -> str:
    """The text without control characters, which file names may contain."""
    return "".join(c if c.isprintable() else "?" for c in text)
