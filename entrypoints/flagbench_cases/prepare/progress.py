"""Progress on stderr: one line that is updated on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import sys
import time
from typing import TextIO

QUIET_SECONDS = 10.0
LIVE_SECONDS = 0.1


class Progress:
    """Called with a phase, the amount done and the total amount (0 if unknown), in bytes or a unit of the case."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._live = self._stream.isatty()
        self._subject = self._phase = self._text = ""
        self._begun = self._shown = 0.0

    def __call__(self, phase: str, done: int, total: int, unit: str = "") -> None:
        """Show the state of a phase, if it is time to."""
        clock = time.monotonic()
        if phase != self._phase:
            self.end_phase()
            self._phase, self._begun, self._shown = phase, clock, clock
        self._text = line(self._subject, phase, done, total, unit, clock - self._begun)
        interval = LIVE_SECONDS if self._live else QUIET_SECONDS
        if clock - self._shown < interval:
            return
        self._shown = clock
        if self._live:
            self._write(f"\r\x1b[2K{self._text}")
        else:
            self._write(f"flagbench: {self._text}\n")
            self._text = ""

    def begin(self, subject: str) -> None:
        """Begin with something else, which is named in every line from now on."""
        self.end_phase()
        self._subject = subject

    def end_phase(self) -> None:
        """Show the final state of the phase and end its line."""
        if self._text and self._live:
            self._write(f"\r\x1b[2K{self._text}\n")
        elif self._text:
            self._write(f"flagbench: {self._text}\n")
        self._phase = self._text = ""

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._live = False


def line(subject: str, phase: str, done: int, total: int, unit: str, seconds: float) -> str:
    """`data: check 1.2 GB of 3.1 GB, 34.1 MB/s`, or in a unit of the case `data: examples 3/7`."""
    text = f"{phase} {_amount(done, total, unit, seconds)}"
    if subject:
        text = f"{subject}: {text}"
    return printable(text)


def _amount(done: int, total: int, unit: str, seconds: float) -> str:
    if unit == "bytes":
        amount = f"{readable(done)} of {readable(total)}"
        if seconds >= 1:
            amount += f", {readable(done / seconds)}/s"
        return amount
    if total:
        return f"{done}/{total}"
    return str(done)


def readable(size: float) -> str:
    """A human-readable number of bytes: `12.3 MB`."""
    if size < 1000:
        return f"{int(size)} bytes"
    units = iter(("kB", "MB", "GB"))
    unit, size = next(units), size / 1000
    while size >= 999.95 and unit != "GB":
        unit, size = next(units), size / 1000
    return f"{size:.1f} {unit}"


def printable(text: str) -> str:
    """The text without control characters, which file names may contain."""
    characters = []
    for character in text:
        if character.isprintable():
            characters.append(character)
        else:
            characters.append("?")
    return "".join(characters)
