"""What commands print: aligned tables, and JSON for a script."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.page import Lines, Table, render

Row = Sequence[str]


class NotPrinted(FlagbenchError):
    """What a command found could not be printed on stdout."""

    def __init__(self, error: OSError) -> None:
        super().__init__(
            f"stdout cannot be written to ({os.strerror(error.errno or 0)})",
            remedy="free space on that disk, or redirect stdout elsewhere",
            code=ExitCode.NOT_STORED,
        )


class CheckedStdout:
    """A stdout whose reader may go away (`| head`): what it no longer reads is discarded.

    The command then continues, and its exit code still says what it found. If stdout is full or closed, NotPrinted is
    raised once and the rest discarded. Everything but writing is the stream's own.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write `text`, or discard it; returns its length. Raises NotPrinted."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._discard(error)
            return len(text)

    def flush(self) -> None:
        """Flush what was written, or discard it. Raises NotPrinted."""
        try:
            self._stream.flush()
        except OSError as error:
            self._discard(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _discard(self, error: OSError) -> None:
        # The descriptor, not the object: what is still buffered goes there too, also at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        if not isinstance(error, BrokenPipeError):
            raise NotPrinted(error) from None


def echo_json(value: Any) -> None:
    """Print one JSON document, indented, keys in the order they were given."""
    echo_json_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def echo_json_text(text: str) -> None:
    """Print a JSON document as it is; where stdout's encoding lacks a character, escaped as JSON does it."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        # Nothing but the texts of a JSON document is ever beyond ASCII.
        text = "".join(c if c.isascii() else json.dumps(c)[1:-1] for c in text)
    print(text)


def echo_table(
    columns: Row,
    rows: Sequence[Row],
    *,
    title: str | None = None,
    cut: Row = (),
    drop: Row = (),
    wide: bool = False,
) -> None:
    """Print rows under their columns, which are shown in capitals; see `flagbench.page.Table`.

    Each cell is one line: what cannot be printed in it is escaped (`flagbench.terminal.visible`).
    """
    if title:
        print(render([Lines((title,), "bold")]).rstrip("\n"))
    table = Table(
        tuple(name.upper() for name in columns),
        tuple(tuple(row) for row in rows),
        cut=tuple(name.upper() for name in cut),
        drop=tuple(name.upper() for name in drop),
    )
    print(render([table], wide=wide).rstrip("\n"))
