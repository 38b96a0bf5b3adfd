"""A file of JSON lines that survives a full disk and a killed writer."""

import json
import os
from types import TracebackType
from typing import Any, Dict, Iterable, Iterator, Optional, Type


class JsonLinesWriter:
    """Appends complete lines to `path`, unbuffered. It must be the only writer of the file."""

    def __init__(self, path: str) -> None:
        """Create or continue the file. Raises OSError."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._fd).st_size
        # A writer killed within a line left it incomplete; it is terminated so that our first line is separate.
        self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"

    def append(self, lines: Iterable[Dict[str, Any]]) -> bool:
        """Write the lines in one call. False if the disk is full; the file then ends with the last complete line."""
        payload = b"".join(
            json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n" for line in lines
        )
        if self._torn:
            payload = b"\n" + payload
        base = os.fstat(self._fd).st_size
        written = 0
        try:
            while written < len(payload):
                written += os.write(self._fd, payload[written:])
        except OSError:
            os.ftruncate(self._fd, base + payload.rfind(b"\n", 0, written) + 1)
            return False
        self._torn = False
        return True

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> "JsonLinesWriter":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()


def read_lines(path: str) -> Iterator[Dict[str, Any]]:
    """The objects of a file, one per line; incomplete and invalid lines are skipped. Raises OSError."""
    with open(path, "rb") as file:
        for line in file:
            try:
                value = json.loads(line.decode("utf-8"))
            except ValueError:
                continue
            if isinstance(value, dict):
                yield value
