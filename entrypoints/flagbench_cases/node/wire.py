"""A non-blocking connection between the parent processes of two nodes that carries JSON lines."""

from __future__ import annotations

import errno
import json
import os
import queue
import select
import socket
import threading
import time
from typing import Any, Sequence

MAX_UNREAD_BYTES = 2**18
"""Most bytes of an incomplete line. A configuration has a few KB; a longer line does not belong to this protocol."""
CONNECT_SECONDS = 5.0
"""How long one attempt to connect may take."""
ConnectResult = queue.Queue  # receives a socket, or the OSError that prevented the connection


class Connection:
    """One connection. `closed` is set when the other side closes it, it breaks, or it carries another protocol."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._unread, self._unsent = b"", b""
        self.closed = False
        self.foreign: str | None = None
        """The start of received bytes that do not belong to this protocol."""
        self.last_received = time.monotonic()

    def send(self, message: dict[str, Any]) -> None:
        """Send an object, as much as the connection accepts now; `flush` sends the rest."""
        self._unsent += json.dumps(message, separators=(",", ":")).encode("utf-8") + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send pending bytes, as many as the connection accepts."""
        try:
            while self._unsent and not self.closed:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            self.closed = len(self._unsent) > MAX_UNREAD_BYTES  # the other side has not read for hours
        except OSError:
            # Received bytes may still be readable.
            self._unsent = b""

    def receive(self) -> list[dict[str, Any]]:
        """The objects received since the last call."""
        try:
            while not self.closed and len(self._unread) <= MAX_UNREAD_BYTES:
                content = self._socket.recv(65536)
                self.closed = not content
                self._unread += content
                self.last_received = time.monotonic()
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True
        lines = self._unread.split(b"\n")
        self._unread = lines.pop()
        if len(self._unread) > MAX_UNREAD_BYTES:
            lines.append(self._unread)
        return [message for message in map(self._parse, lines) if message is not None]

    def _parse(self, line: bytes) -> dict[str, Any] | None:
        try:
            message = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict) or self.foreign is not None:
            self.closed = True
            self.foreign = self.foreign or printable(line[:60].decode("utf-8", "replace"))
            return None
        return message

    def wait(self, seconds: float) -> None:
        """Wait for data, at most `seconds`."""
        wait([self._socket], seconds)

    def end_sending(self) -> None:
        """Signal the end of sending. Unlike after a close, the other side can still read everything."""
        self.flush()
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.closed = True

    def detach(self) -> None:
        """Stop using the connection without closing it: the other side sees its end when this process ends."""
        self.closed = True
        self._socket.detach()

    def close(self) -> None:
        """Close the connection."""
        self.closed = True
        self._socket.close()

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._socket.fileno()


def wait(sources: Sequence[Any], seconds: float) -> None:
    """Wait until one of `sources` is readable, at most `seconds`. Not by `select`, which is limited to descriptors
    below 1024."""
    waiting = select.poll()
    for source in sources:
        waiting.register(source, select.POLLIN)
    waiting.poll(seconds * 1000)


def connect_async(host: str, port: int, delay: float = 0.0) -> ConnectResult:
    """Connect in a separate thread, after `delay` seconds; the result is the socket, or the error.

    An unresponsive name server blocks the resolver for 10 s or more, during which no signal would be handled.
    """
    answers: ConnectResult = queue.Queue()

    def connect() -> None:
        time.sleep(delay)
        try:
            connection = socket.create_connection((host, port), timeout=CONNECT_SECONDS)
            if connection.getsockname() == connection.getpeername():
                # TCP connected the socket to itself: nobody listens on this local port, which was also its source.
                connection.close()
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            answers.put(connection)
        except OSError as error:
            answers.put(error)
        except UnicodeError as error:  # a name that IDNA cannot encode
            answers.put(OSError(0, str(error)))

    threading.Thread(target=connect, daemon=True).start()
    return answers


def listen(port: int) -> socket.socket:
    """A listening socket on every address of this machine. Raises OSError."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET  # a kernel may have no IPv6
    listener = socket.create_server(("", port), family=family, backlog=1024, dualstack_ipv6=dual)
    listener.setblocking(False)
    return listener


def printable(text: str) -> str:
    """Text from another machine made safe to display: no control characters, no lone surrogates."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    characters = []
    for character in text:
        if character.isprintable():
            characters.append(character)
        else:
            characters.append("?")
    return "".join(characters)
