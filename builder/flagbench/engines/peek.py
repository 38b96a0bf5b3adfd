"""One question to an engine on this machine, asked without its client library.

Importing docker-py takes 0.15 s of CPU, half of what a build that has nothing to do may take. Whether it has
anything to do is two questions with small JSON answers, which a Unix socket and HTTP/1.0 carry: an engine
then sends no chunks and closes the connection at the end.
"""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import quote

# No answer to these questions is larger; a socket that somebody else serves may send without end.
LARGEST = 2**24


def get(path: str, socket_path: str, timeout: float) -> tuple[int, Any]:
    """`GET path` of the HTTP server at a Unix socket: the status, and the JSON of the body.

    Raises:
        OSError: the socket cannot be reached, or the answer does not come within `timeout` seconds a read.
        ValueError: the answer is no HTTP, no JSON, or too large.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(socket_path)
        connection.sendall(f"GET {quote(path, safe='/:@')} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode("ascii"))
        answer = bytearray()
        while piece := connection.recv(65536):
            answer += piece
            if len(answer) > LARGEST:
                raise ValueError(f"an answer of more than {LARGEST} bytes")
    head, separator, body = bytes(answer).partition(b"\r\n\r\n")
    protocol, _, rest = head.partition(b" ")
    if not separator or not protocol.startswith(b"HTTP/1.") or not rest[:3].isdigit():
        raise ValueError(f"no HTTP: {bytes(answer[:60])!r}")
    return int(rest[:3]), json.loads(body)
