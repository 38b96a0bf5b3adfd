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


def install() -> None:
    """Open descriptors that are closed, and replace `sys.stdin`, `sys.stdout` and `sys.stderr`.

    Stdin is empty if it was closed, waits for a slow writer even if its descriptor is non-blocking, and accepts text
    in any encoding. Stdout waits for a slow reader in the same way, and raises OSError if it cannot be written to.
    Stderr drops output that is not read: an unread message must not make a command fail or hang.
    """
    for descriptor, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            # Otherwise the next file or socket gets this number. Stdout is opened read-only, so that printing to it
            # fails instead of being lost silently.
            _open_as(descriptor, flags)
    encoding = getattr(sys.stdin, "encoding", None) or "utf-8"
    sys.stdin = io.TextIOWrapper(io.BufferedReader(_Stdin(0)), encoding=encoding, errors="backslashreplace")
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    errors = getattr(sys.stdout, "errors", None) or "strict"
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Stdout(1)), encoding=encoding, errors=errors, line_buffering=os.isatty(1)
    )
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_Stderr(2)), encoding=encoding, errors="backslashreplace", line_buffering=True
    )


def _open_as(descriptor: int, flags: int) -> None:
    opened = os.open(os.devnull, flags)
    if opened != descriptor:
        os.dup2(opened, descriptor)
        os.close(opened)
    os.set_inheritable(descriptor, True)


class _Descriptor(io.RawIOBase):
    """A descriptor that is left open when its stream is closed."""

    def __init__(self, descriptor: int, event: int) -> None:
        self._descriptor = descriptor
        self._waiting = select.poll()
        self._waiting.register(descriptor, event)

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)


class _Stdin(_Descriptor):
    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, select.POLLIN)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while True:
            try:
                content = os.read(self._descriptor, len(buffer))
            except BlockingIOError:
                self._waiting.poll()
                continue
            buffer[: len(content)] = content
            return len(content)


class _Output(_Descriptor):
    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, select.POLLOUT)

    def writable(self) -> bool:
        return True


class _Stdout(_Output):
    def write(self, content: bytes) -> int:  # type: ignore[override]
        while True:
            try:
                return os.write(self._descriptor, content)
            except BlockingIOError:
                self._waiting.poll()


class _Stderr(_Output):
    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._patience = _PATIENCE_SECONDS

    def write(self, content: bytes) -> int:  # type: ignore[override]
        try:
            self._forward(bytes(content))
        except OSError:
            pass
        return len(content)

    def _forward(self, left: bytes) -> None:
        deadline = time.monotonic() + self._patience
        while left:
            ready = self._waiting.poll(max(0.0, deadline - time.monotonic()) * 1000)
            try:
                taken = os.write(self._descriptor, left[:_CHUNK]) if ready else 0
            except BlockingIOError:
                taken = 0
            if taken:
                left, self._patience = left[taken:], _PATIENCE_SECONDS
                deadline = time.monotonic() + self._patience
            elif time.monotonic() >= deadline:
                self._patience = 0.0
                return
            else:
                time.sleep(0.01)  # it reports ready and accepts nothing yet
