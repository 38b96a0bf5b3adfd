"""Progress of a conversion on stderr: one updating line on a terminal, otherwise a line every few seconds."""

import os
import sys
import time
from typing import Optional, TextIO

from flagbench_cases.prepare.writer import readable

QUIET_SECONDS = 10.0
LIVE_SECONDS = 0.1
MIN_RATE_SECONDS = 0.2  # below this a rate is meaningless


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
        self._began = self._last = 0.0
        self._written = 0

    def __call__(self, phase: str, done: int, total: int, unit: str = "") -> None:
        """Update the state, and show it if due."""
        clock = time.monotonic()
        if phase != self._phase:
            self.end_phase()
            self._phase, self._began, self._last = phase, clock, clock
            self._written = self._bytes_written()
        wait = LIVE_SECONDS if self._live else QUIET_SECONDS
        finished = bool(total) and done >= total
        if finished or clock - self._last >= wait or not self._text:
            read = done if unit == "bytes" else self._bytes_written() - self._written
            seconds = clock - self._began
            rate = read / seconds if seconds >= MIN_RATE_SECONDS else 0.0
            self._text = line(self.subject, phase, done, total, unit, rate)
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

    def _show(self) -> None:
        self._shown = self._text
        self._write("\r\x1b[2K" + self._text if self._live else "flagbench: %s\n" % self._text)

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._live = False

    def _bytes_written(self) -> int:
        """Size of the files in the folder, bytes."""
        if self.folder is None:
            return 0
        try:
            with os.scandir(self.folder) as entries:
                return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
        except OSError:
            return self._written


def line(subject: str, phase: str, done: int, total: int, unit: str, rate: float) -> str:
    """`data: examples 1200/4000, 34.1 MB/s`. The rate (bytes per second) is omitted if nothing is written."""
    if unit == "bytes":
        amount = "%s of %s" % (readable(done), readable(total)) if total else readable(done)
    else:
        amount = "%d/%d" % (done, total) if total else "%d" % done
    text = "%s: %s %s" % (subject, phase, amount) if subject else "%s %s" % (phase, amount)
    return printable(text + (", %s/s" % readable(rate) if rate >= 1 else ""))


def printable(text: str) -> str:
    """The text without control characters, which file names may contain."""
    return "".join(c if c.isprintable() else "?" for c in text)
