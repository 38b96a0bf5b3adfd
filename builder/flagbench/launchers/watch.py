"""A container from its start to its end: output is read as it comes, signals are forwarded."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator, Mapping
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from docker.errors import APIError, DockerException, NotFound  # type: ignore[import-untyped]

from flagbench.launchers.container_exit import Watched
from flagbench.launchers.signals import GRACE_SECONDS, Grace

MOST_BYTES = 64 * 2**20
"""Bytes of stdout that are kept, from its end: a record has some tens of KB."""
_DRAIN_SECONDS = 5.0


class Watch:
    """One container, made and not yet started. `api` is docker-py's low-level client.

    Two threads talk to the engine, one reading output and one waiting for the end, because both block. The main
    thread sleeps on a queue, which a signal handler may put to at any moment, and does everything else.
    """

    def __init__(self, api: Any, container: str) -> None:
        self._api = api
        self._container = container
        self._grace = Grace()
        self._stdout = bytearray()
        self._events: SimpleQueue[int | BaseException | None] = SimpleQueue()
        self._reader: Thread | None = None

    def forward(self, number: int) -> None:
        """Forward a signal to the container; may be called from a signal handler."""
        self._events.put(number)

    def start(self) -> None:
        """Start it. Raises what docker-py raises where the engine refuses."""
        # Attached before the start, so that no output is lost.
        output = self._api.attach(self._container, stdout=True, stderr=True, stream=True, demux=True)
        self._api.start(self._container)
        self._reader = Thread(target=self._read, args=(output,), daemon=True)
        self._reader.start()

    def follow(self) -> Watched:
        """Wait until the started container has ended. Raises what docker-py raises if the connection is lost."""
        Thread(target=self._wait, daemon=True).start()
        overdue = self._until_ended()
        if self._reader is not None:
            # Everything it wrote has been sent by now, unless another process keeps its output open.
            self._reader.join(_DRAIN_SECONDS)
        return Watched(bytes(self._stdout), self._state(), self._grace.signalled, overdue)

    def _until_ended(self) -> float | None:
        """Serve signals until the container has ended, or cannot be ended; when it was killed, where it was."""
        overdue: float | None = None
        while True:
            try:
                event = self._events.get(timeout=self._grace.left() if overdue is None else GRACE_SECONDS)
            except Empty:
                if overdue is not None:
                    return overdue  # a process stuck in a driver outlives even SIGKILL
                overdue = self._grace.used()
                self._kill()
                continue
            if event is None:
                return overdue
            if isinstance(event, BaseException):
                raise event
            self._grace.note(event)
            self._signal(event)

    def _signal(self, number: int) -> None:
        # It may have ended just now. What cannot be signalled for another reason is killed after the grace.
        with contextlib.suppress(APIError):
            self._api.kill(self._container, signal.Signals(number).name)

    def _kill(self) -> None:
        # A paused container does not even see SIGKILL before it runs again.
        for call in (self._api.unpause, self._api.kill):
            with contextlib.suppress(APIError):
                call(self._container)

    def _wait(self) -> None:
        """In a thread: tell the main thread that the container has ended, or why that cannot be known."""
        try:
            self._api.wait(self._container, timeout=None)
        except (DockerException, OSError, ValueError) as error:
            # ValueError: the engine died in the middle of its answer.
            gone = isinstance(error, APIError) and error.status_code == 404
            self._events.put(None if gone else error)
        else:
            self._events.put(None)

    def _read(self, output: Iterator[tuple[bytes | None, bytes | None]]) -> None:
        """In a thread: stderr to the user as it comes, stdout kept. An end of the connection ends it."""
        with contextlib.suppress(OSError):
            for stdout, stderr in output:
                if stderr:
                    _show(stderr)
                if stdout:
                    self._stdout += stdout
                    del self._stdout[:-MOST_BYTES]

    def _state(self) -> Mapping[str, Any] | None:
        try:
            state: Mapping[str, Any] = self._api.inspect_container(self._container)["State"]
        except NotFound:
            return None
        return state


def _show(progress: bytes) -> None:
    # The run continues if the reader of its progress is gone (`2>&1 | head`).
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.buffer.write(progress)
        sys.stderr.buffer.flush()
