"""A log of stderr: what this process and its children write is printed as before, and kept."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

MOST_BYTES = 16 * 2**20
"""Bytes that are kept, from the end."""
_STDERR = 2
_WAIT_S = 2.0
"""How long a child that was left behind may keep the log open."""


class Log:
    """The text so far, without its beginning where it is long."""

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
        """All of it, from the first whole line that is kept."""
        kept = bytes(self._kept)
        if self._cut:
            kept = b"(its beginning is left out)\n" + kept.partition(b"\n")[2]
        return kept.decode("utf-8", "replace")


@contextmanager
def logged() -> Iterator[Log]:
    """Keep what this process, and those that it starts, write to stderr meanwhile. Runs show lines and no bar."""
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
        os.dup2(terminal, _STDERR)
        reader.join(_WAIT_S)
        if not reader.is_alive():
            os.close(terminal)


def _copy(reading: int, terminal: int, log: Log) -> None:
    with open(reading, "rb", buffering=0) as stream:
        while content := stream.read(1 << 16):
            log.add(content)
            with suppress(OSError):  # stderr is closed; the run continues
                rest = memoryview(content)
                while rest:
                    rest = rest[os.write(terminal, rest) :]


def _flush() -> None:
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
