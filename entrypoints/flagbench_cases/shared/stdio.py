"""The three standard descriptors, whatever the caller left of them: open, and a stderr that never fails or blocks.

Everything that this process, its libraries and its children write to stderr goes into a pipe. A thread forwards it to
the stderr that was there at the start, and drops what that one does not take: full, closed, gone, or read by nobody.
"""

import io
import os
import select
import sys
import threading
import time
import types
from typing import Optional, Type

# Seconds until unread output is dropped; from then on nothing waits until some output is read again.
PATIENCE_SECONDS = 1.0
# Seconds for the last output to be forwarded, at the end.
LAST_SECONDS = 2.0
# Bytes that a ready pipe accepts without blocking.
CHUNK = 4096


def open_standard() -> None:
    """Open those of stdin, stdout and stderr that are closed, so that no file or socket gets their numbers.

    On /dev/null, and stdout so that it cannot be written to: a record must not be lost without a word.
    """
    for descriptor, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, flags)  # the lowest number that is free
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)


def _copy(descriptor: int) -> int:
    """A descriptor of our own for the same file. A terminal is opened again: one that says it is ready can block all
    the same, and its own descriptor must stay as its other users have it."""
    if os.isatty(descriptor):
        try:
            return os.open("/proc/self/fd/%d" % descriptor, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:  # it belongs to another user, as in a container
            pass
    return os.dup(descriptor)


class _Stream(io.TextIOWrapper):
    """`sys.stderr`, on a terminal where the stderr is one that it is handed on to."""

    def __init__(self, terminal: bool) -> None:
        raw = open(2, "wb", buffering=0, closefd=False)
        super().__init__(raw, encoding="utf-8", errors="backslashreplace", write_through=True)  # type: ignore[arg-type]
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


class Stderr:
    """For the time of the `with`: descriptor 2 and `sys.stderr` take everything that is written to them."""

    def __init__(self) -> None:
        self._before = -1  # stderr as it was
        self._real = -1  # where to write to it
        self._reading = -1
        self._thread: Optional[threading.Thread] = None
        self._patience = PATIENCE_SECONDS

    def __enter__(self) -> "Stderr":
        open_standard()
        self._before, self._real = os.dup(2), _copy(2)
        self._reading, writing = os.pipe()
        os.dup2(writing, 2)
        os.close(writing)
        thread = threading.Thread(target=self._forward, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads for this user: then stderr is what it was
            os.dup2(self._before, 2)
        else:
            self._thread = thread
        sys.stderr = _Stream(os.isatty(self._before))
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[types.TracebackType],
    ) -> None:
        pipe = os.fstat(2)
        for descriptor in (1, 2):
            if os.path.samestat(os.fstat(descriptor), pipe):
                os.dup2(self._before, descriptor)
        if self._thread is not None:
            # It ends when the last process that could write has ended.
            self._thread.join(LAST_SECONDS)

    def _forward(self) -> None:
        """In a thread: forward everything until no writer is left."""
        while True:
            try:
                said = os.read(self._reading, CHUNK)
            except OSError:
                return
            if not said:
                return
            try:
                self._write(said)
            except OSError:
                continue

    def _write(self, said: bytes) -> None:
        waiting = select.poll()
        waiting.register(self._real, select.POLLOUT)
        deadline = time.monotonic() + self._patience
        while said:
            left = deadline - time.monotonic()
            ready = waiting.poll(max(0.0, left) * 1000)
            try:
                taken = os.write(self._real, said) if ready else 0
            except BlockingIOError:
                taken = 0
            if taken:
                said, self._patience = said[taken:], PATIENCE_SECONDS
                deadline = time.monotonic() + PATIENCE_SECONDS
            elif left <= 0:
                self._patience = 0.0
                return
            else:
                time.sleep(0.01)  # it reports ready and accepts nothing yet
