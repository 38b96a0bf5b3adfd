"""A file of JSON lines that survives a full disk and a killed writer."""

from __future__ import annotations

import json
import os
from typing import Any, Iterable, Iterator


class JsonLinesWriter:
    """Writes complete lines to a new file, unbuffered."""

    def __init__(self, path: str) -> None:
        """Create the file. Raises OSError."""
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def append(self, lines: Iterable[dict[str, Any]]) -> bool:
        """Write the lines in one call. False if the disk is full; the file then ends with the last complete line."""
        payload = b"".join(_encode(line) for line in lines)
        base = os.fstat(self._fd).st_size
        written = 0
        try:
            while written < len(payload):
                written += os.write(self._fd, payload[written:])
        except OSError:
            os.ftruncate(self._fd, base + payload.rfind(b"\n", 0, written) + 1)
            return False
        return True

    def __enter__(self) -> JsonLinesWriter:
        return self

    def __exit__(self, *_: Any) -> None:
        os.close(self._fd)


def _encode(line: dict[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def append_lines(path: str, lines: Iterable[dict[str, Any]]) -> None:
    """Append lines to a file that no one writes any more. On an error, such as a full disk, they are lost."""
    try:
        with open(path, "ab") as file:
            for line in lines:
                file.write(_encode(line))
    except OSError:
        pass


def read_lines(path: str) -> Iterator[dict[str, Any]]:
    """The objects of a file, one per line; incomplete and invalid lines are skipped. Raises OSError."""
    with open(path, "rb") as file:
        for line in file:
            try:
                value = json.loads(line.decode("utf-8"))
            except ValueError:
                continue
            if isinstance(value, dict):
                yield value
