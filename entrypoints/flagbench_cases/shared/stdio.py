"""Makes standard descriptors robust: all three are open, and writing to stderr never fails or blocks.

Everything that this process, its libraries and its children write to stderr goes into a pipe. A thread forwards it to
the original stderr and drops what that does not accept because it is full, closed or not being read.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
import threading
import time
import types

PATIENCE_SECONDS = 1.0
"""How long output waits for a reader before it is dropped. Later output is dropped at once, until some is read."""
LAST_SECONDS = 2.0
"""How long the remaining output is forwarded at exit."""
CHUNK = 4096
"""Bytes that a ready pipe accepts without blocking (PIPE_BUF)."""
RETRY_SECONDS = 0.01
"""The wait before another write to a descriptor that polls as ready but accepts nothing."""


def open_standard() -> None:
    """Open those of stdin, stdout and stderr that are closed, so that no other file or socket gets their numbers.

    They are opened on /dev/null, stdout read-only, so that writing a record to it fails instead of losing it
    silently.
    """
    for descriptor, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, flags)  # the lowest free descriptor
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)


def _copy(descriptor: int) -> int:
    """A new descriptor for the same file, non-blocking if the file is a terminal.

    A terminal can block even if it polls as ready. It is reopened, since its original descriptor is shared with other
    processes and must not be changed.
    """
    if os.isatty(descriptor):
        try:
            return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:  # it belongs to another user, as in a container
            pass
    return os.dup(descriptor)


class _Stream(io.TextIOWrapper):
    """The `sys.stderr` that writes into the pipe. Its `isatty` says whether the original stderr is a terminal."""

    def __init__(self, terminal: bool) -> None:
        raw = open(2, "wb", buffering=0, closefd=False)
        super().__init__(raw, encoding="utf-8", errors="backslashreplace", write_through=True)  # type: ignore[arg-type]
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


class Stderr:
    """A context manager in which descriptor 2 and `sys.stderr` accept everything written to them.

    At exit, descriptor 2 is the original stderr again. The exit waits up to LAST_SECONDS for the output that is still
    in the pipe.
    """

    def __init__(self) -> None:
        self._original = -1
        """A duplicate of the original stderr, with which the exit restores descriptor 2."""
        self._target = -1
        """The descriptor that the output is forwarded to. It is not `_original`, because it may be non-blocking."""
        self._reading = -1
        """The end of the pipe that the thread reads."""
        self._thread: threading.Thread | None = None
        """The thread that forwards the output; None if it could not be started, so that nothing is forwarded."""
        self._patience = PATIENCE_SECONDS
        """How long the next write waits: PATIENCE_SECONDS, or 0 after output was dropped, until some is accepted."""

    def __enter__(self) -> Stderr:
        open_standard()
        self._original = os.dup(2)
        self._target = _copy(2)
        self._reading, writing = os.pipe()
        os.dup2(writing, 2)
        os.close(writing)
        thread = threading.Thread(target=self._forward, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads for this user: keep the original stderr
            os.dup2(self._original, 2)
        else:
            self._thread = thread
        sys.stderr = _Stream(os.isatty(self._original))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        # sys.stderr stays: it writes to descriptor 2, whichever file that is.
        pipe = os.fstat(2)
        for descriptor in (1, 2):  # stdout may have been redirected into the pipe
            if os.path.samestat(os.fstat(descriptor), pipe):
                os.dup2(self._original, descriptor)
        if self._thread is not None:
            # The thread ends when the last writer of the pipe has ended.
            self._thread.join(LAST_SECONDS)

    def _forward(self) -> None:
        """Thread: forward everything until no writer is left."""
        while True:
            try:
                content = os.read(self._reading, CHUNK)
            except OSError:
                return
            if not content:
                return
            try:
                self._write(content)
            except OSError:  # the reader of the original stderr has gone: the output is dropped
                continue

    def _write(self, content: bytes) -> None:
        """Write to the original stderr; drop what it does not accept in time. Raises OSError."""
        waiting = select.poll()
        waiting.register(self._target, select.POLLOUT)
        deadline = time.monotonic() + self._patience
        while content:
            remaining = deadline - time.monotonic()
            written = 0
            if waiting.poll(max(0.0, remaining) * 1000):
                with contextlib.suppress(BlockingIOError):
                    written = os.write(self._target, content)
            if written:
                content = content[written:]
                self._patience = PATIENCE_SECONDS
                deadline = time.monotonic() + PATIENCE_SECONDS
            elif remaining <= 0:
                self._patience = 0.0
                return
            else:
                time.sleep(RETRY_SECONDS)
