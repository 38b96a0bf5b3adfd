"""Standard input, output and error that work even if the caller closed them, and that never end in a traceback.

__main__.py installs them before any other module is imported.
"""

from __future__ import annotations

import io
import os
import select
import sys
import time

_PATIENCE_SECONDS = 1.0
"""Seconds after which unread output to stderr is dropped. Then no write waits until the reader reads again."""
_CHUNK = 4096
"""The bytes that a pipe that is ready accepts without blocking: PIPE_BUF on Linux."""
_RETRY_SECONDS = 0.01
"""The pause before another try, if stderr reports that it is ready and accepts nothing."""


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
            # Open something in its place: otherwise the next file or socket would get this number, the lowest that is
            # free. Stdout is opened read-only, so that printing to it fails instead of being lost silently.
            opened = os.open(os.devnull, flags)
            os.set_inheritable(opened, True)
    stdout: io.RawIOBase = _Stdout(1, "wb", closefd=False)
    stderr: io.RawIOBase = _Stderr(2, "wb", closefd=False)
    sys.stdin = _text_stream(io.BufferedReader(_Stdin(0, closefd=False)), sys.stdin)
    sys.stdout = _text_stream(io.BufferedWriter(stdout), sys.stdout, line_buffering=stdout.isatty())
    sys.stderr = _text_stream(io.BufferedWriter(stderr), sys.stderr, line_buffering=True)


def _text_stream(
    stream: io.BufferedReader | io.BufferedWriter, replaced: object, *, line_buffering: bool = False
) -> io.TextIOWrapper:
    """A text stream with the encoding of the stream that it replaces."""
    encoding = getattr(replaced, "encoding", None) or "utf-8"
    return io.TextIOWrapper(stream, encoding=encoding, errors="backslashreplace", line_buffering=line_buffering)


def _wait_until_ready(descriptor: int, event: int, seconds: float | None = None) -> bool:
    """Wait until a descriptor is ready, for at most `seconds`. Returns whether it is.

    With `poll`, since `select` is limited to descriptors below 1024.
    """
    poll = select.poll()
    poll.register(descriptor, event)
    if seconds is None:
        return bool(poll.poll())
    milliseconds = 1000 * seconds
    return bool(poll.poll(milliseconds))


class _Stdin(io.FileIO):
    """Stdin that waits for its writer, even if its descriptor is non-blocking."""

    # Those of RawIOBase call `readinto`. Those of FileIO do not, and return early if there is nothing to read yet.
    read = io.RawIOBase.read  # type: ignore[assignment]
    readall = io.RawIOBase.readall

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while True:
            count = super().readinto(buffer)
            if count is not None:
                return count
            _wait_until_ready(self.fileno(), select.POLLIN)


class _Stdout(io.FileIO):
    """Stdout that waits for its reader. Once the reader is gone or writing fails, it discards what is written."""

    _is_lost = False

    def write(self, content: memoryview) -> int:  # type: ignore[override]
        try:
            while not self._is_lost:
                count = super().write(content)
                if count is not None:
                    return count
                _wait_until_ready(self.fileno(), select.POLLOUT)  # it is non-blocking and full
        except BrokenPipeError:
            self._is_lost = True
        except OSError as error:
            self._is_lost = True
            raise NotPrinted(f"stdout cannot be written to ({error.strerror})") from None
        return len(content)


class _Stderr(io.FileIO):
    """Stderr that drops what is not read within _PATIENCE_SECONDS, or cannot be written."""

    _patience = _PATIENCE_SECONDS

    def write(self, content: memoryview) -> int:  # type: ignore[override]
        deadline = time.monotonic() + self._patience
        try:
            while True:
                seconds_left = max(0.0, deadline - time.monotonic())
                count: int | None = None
                if _wait_until_ready(self.fileno(), select.POLLOUT, seconds_left):
                    count = super().write(content[:_CHUNK])
                if count:
                    self._patience = _PATIENCE_SECONDS
                    return count  # the caller then writes the bytes after these
                if time.monotonic() >= deadline:
                    self._patience = 0.0
                    return len(content)
                time.sleep(_RETRY_SECONDS)
        except OSError:
            return len(content)
