"""Keeps a copy of what this process and its children write to stderr, for the bundle of a reproduction."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

MOST_BYTES = 16 * 2**20
"""Bytes that are kept; of a longer text, those at the end."""
_STDERR = 2
"""The file descriptor of stderr."""
_WAIT_S = 2.0
"""Seconds that the end of the log is waited for. A child that outlives its run may keep stderr open."""
_BLOCK_BYTES = 1 << 16
"""Most bytes read at once: the capacity of a pipe on Linux."""


class Log:
    """The text written to stderr so far; the beginning of a long text is left out."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._cut = False

    def add(self, content: bytes) -> None:
        """Append to the log."""
        self._kept += content
        if len(self._kept) > MOST_BYTES:
            self._cut = True
            del self._kept[: len(self._kept) - MOST_BYTES]

    @property
    def text(self) -> str:
        """The text that is kept, from its first whole line."""
        kept = bytes(self._kept)
        if self._cut:
            kept = b"(its beginning is left out)\n" + kept.partition(b"\n")[2]
        return kept.decode("utf-8", "replace")


@contextmanager
def logged() -> Iterator[Log]:
    """Keep what this process and its children write to stderr until the end of the `with` block.

    stderr is then a pipe, so runs print lines in place of a progress bar. A thread copies the pipe to the terminal.
    """
    log = Log()
    _flush()
    terminal = os.dup(_STDERR)
    reading, writing = os.pipe()
    reader = Thread(target=_copy, args=(reading, terminal, log), daemon=True)
    reader.start()
    os.dup2(writing, _STDERR)
    os.close(writing)
    try:
        yield log
    finally:
        _flush()
        os.dup2(terminal, _STDERR)  # this closes the pipe, unless a child has it open
        reader.join(_WAIT_S)
        if not reader.is_alive():
            os.close(terminal)


def _copy(reading: int, terminal: int, log: Log) -> None:
    """Copy a pipe to the terminal and to the log until it is closed."""
    with open(reading, "rb", buffering=0) as stream:
        while content := stream.read(_BLOCK_BYTES):
            log.add(content)
            with suppress(OSError):  # stderr is closed; the run continues
                _write_all(terminal, content)


def _write_all(descriptor: int, content: bytes) -> None:
    """Write all bytes, in several parts if the system takes only some of them at a time. Raises OSError."""
    remaining = memoryview(content)
    while remaining:
        written = os.write(descriptor, remaining)
        remaining = remaining[written:]


def _flush() -> None:
    """Write what Python has buffered for stderr."""
    with suppress(OSError, ValueError, AttributeError):  # stderr is closed, or there is none
        sys.stderr.flush()
