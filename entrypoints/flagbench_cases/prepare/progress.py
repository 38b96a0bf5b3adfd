"""Shows the progress of `prepare` on stderr: a line that is updated on a terminal, else a line every few seconds."""

from __future__ import annotations

import sys
import time
from typing import TextIO

LOG_SECONDS = 10.0
"""Seconds between two lines if stderr is not a terminal."""
TERMINAL_SECONDS = 0.1
"""Seconds between two updates of the line on a terminal."""
CLEAR_LINE = "\r\x1b[2K"
"""Moves a terminal's cursor to the start of its line and clears the line."""


class Progress:
    """A `Report` that shows how much of a phase is done.

    It is called with the name of a phase, the amount done and the total amount (0 if unknown), in bytes or in a unit
    of the case, such as examples.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._on_terminal = self._stream.isatty()
        self._subject = ""
        """What is prepared, `data` or `weights`."""
        self._phase = ""
        self._phase_begun = 0.0
        self._state = ""
        """The latest state of the phase as text; empty once a line of its own has shown it."""
        self._last_shown = 0.0

    def __call__(self, phase: str, done: int, total: int, unit: str = "") -> None:
        """Show the state of a phase, unless the last one was shown just before."""
        now = time.monotonic()
        if phase != self._phase:
            self.end_phase()
            self._phase = phase
            self._phase_begun = now
            self._last_shown = now
        self._state = format_line(self._subject, phase, done, total, unit, now - self._phase_begun)
        interval = TERMINAL_SECONDS if self._on_terminal else LOG_SECONDS
        if now - self._last_shown < interval:
            return
        self._last_shown = now
        if self._on_terminal:
            self._write(f"{CLEAR_LINE}{self._state}")
        else:
            self._write(f"flagbench: {self._state}\n")
            self._state = ""

    def begin(self, subject: str) -> None:
        """Begin with another subject, `data` or `weights`, which every line names from now on."""
        self.end_phase()
        self._subject = subject

    def end_phase(self) -> None:
        """Show the final state of the phase and end its line."""
        if self._state and self._on_terminal:
            self._write(f"{CLEAR_LINE}{self._state}\n")
        elif self._state:
            self._write(f"flagbench: {self._state}\n")
        self._phase = ""
        self._state = ""

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal or the reader of a pipe is gone; the work goes on
            self._on_terminal = False


def format_line(subject: str, phase: str, done: int, total: int, unit: str, seconds: float) -> str:
    """Return a line such as `data: check 1.2 GB of 3.1 GB, 34.1 MB/s`, or `data: examples 3/7` in a case's unit."""
    text = f"{phase} {_format_amount(done, total, unit, seconds)}"
    if subject:
        text = f"{subject}: {text}"
    return printable(text)


def _format_amount(done: int, total: int, unit: str, seconds: float) -> str:
    if unit == "bytes":
        amount = f"{readable(done)} of {readable(total)}"
        if seconds >= 1:  # a rate over a shorter time says little
            amount += f", {readable(done / seconds)}/s"
        return amount
    if total:
        return f"{done}/{total}"
    return str(done)


def readable(size: float) -> str:
    """Return a human-readable number of bytes, such as `12.3 MB`."""
    if size < 1000:
        return f"{int(size)} bytes"
    for unit in ("kB", "MB"):
        size /= 1000
        if size < 999.95:  # a larger number would be rounded to 1000.0
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} GB"


def printable(text: str) -> str:
    """Return the text with `?` for control characters, which file names may contain."""
    characters = []
    for character in text:
        if character.isprintable():
            characters.append(character)
        else:
            characters.append("?")
    return "".join(characters)
