"""Standard input, output and error that work even if the caller closed them, and never end in a traceback."""

from __future__ import annotations

import io
import os
import select
import sys
import time

_PATIENCE_SECONDS = 1.0
"""Seconds until unread stderr is dropped; after that nothing waits until the reader takes some of it again."""
_CHUNK = 4096
"""Bytes that a ready pipe accepts without blocking."""


class NotPrinted(Exception):
    """Stdout is full or closed. Raised once; what is printed after that is discarded."""


def install() -> None:
    """Open descriptors that are closed, and replace `sys.stdin`, `sys.stdout` and `sys.stderr`.

    Stdin is empty if it was closed, waits for a slow writer even if its descriptor is non-blocking, and accepts text
    in any encoding. Stdout waits for a slow reader in the same way, discards what a reader that went away (`| head`)
    no longer reads, and raises NotPrinted if it cannot be written to. Stderr drops output that is not read: an unread
    message must not make a command fail or hang. A character that an encoding lacks is shown as its number.
    """
    for descriptor, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            # Otherwise the next file or socket gets this number, the lowest that is free. Stdout is opened read-only,
            # so that printing to it fails instead of being lost silently.
            os.set_inheritable(os.open(os.devnull, flags), True)
    stdout: io.RawIOBase = _Stdout(1, "wb", closefd=False)
    stderr: io.RawIOBase = _Stderr(2, "wb", closefd=False)
    sys.stdin = _text(io.BufferedReader(_Stdin(0, closefd=False)), sys.stdin)
    sys.stdout = _text(io.BufferedWriter(stdout), sys.stdout, line_buffering=stdout.isatty())
    sys.stderr = _text(io.BufferedWriter(stderr), sys.stderr, line_buffering=True)


def _text(
    stream: io.BufferedReader | io.BufferedWriter, replaced: object, *, line_buffering: bool = False
) -> io.TextIOWrapper:
    encoding = getattr(replaced, "encoding", None) or "utf-8"
    return io.TextIOWrapper(stream, encoding=encoding, errors="backslashreplace", line_buffering=line_buffering)


def _ready(descriptor: int, event: int, seconds: float | None = None) -> bool:
    """Wait until a descriptor is ready. Not by `select`, which is limited to descriptors below 1024."""
    waiting = select.poll()
    waiting.register(descriptor, event)
    if seconds is None:
        return bool(waiting.poll())
    return bool(waiting.poll(1000 * seconds))


class _Stdin(io.FileIO):
    # Both by readinto; FileIO's own return early where there is nothing to read yet.
    read, readall = io.RawIOBase.read, io.RawIOBase.readall  # type: ignore[assignment]

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while (taken := super().readinto(buffer)) is None:
            _ready(self.fileno(), select.POLLIN)
        return taken


class _Stdout(io.FileIO):
    _lost = False

    def write(self, content: memoryview) -> int:  # type: ignore[override]
        try:
            while not self._lost:
                if (taken := super().write(content)) is not None:
                    return taken
                _ready(self.fileno(), select.POLLOUT)  # it is non-blocking and full
        except BrokenPipeError:
            self._lost = True
        except OSError as error:
            self._lost = True
            raise NotPrinted(f"stdout cannot be written to ({error.strerror})") from None
        return len(content)


class _Stderr(io.FileIO):
    _patience = _PATIENCE_SECONDS

    def write(self, content: memoryview) -> int:  # type: ignore[override]
        deadline = time.monotonic() + self._patience
        try:
            while True:
                ready = _ready(self.fileno(), select.POLLOUT, max(0.0, deadline - time.monotonic()))
                if ready and (taken := super().write(content[:_CHUNK])):
                    self._patience = _PATIENCE_SECONDS
                    return taken  # the rest is written next
                if time.monotonic() >= deadline:
                    self._patience = 0.0
                    return len(content)
                time.sleep(0.01)  # it reports ready and accepts nothing yet
        except OSError:
            return len(content)
