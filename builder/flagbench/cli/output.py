"""What commands print: tables for a terminal, aligned text for a pipe, JSON for a script."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from flagbench.terminal import visible

Row = Sequence[str]


class LenientStdout:
    """A stdout whose reader may go away (`| head`): what it no longer reads is discarded.

    The command goes on and its exit code still says what it found. Everything but writing is the
    stream's own.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write `text`, or discard it; returns its length."""
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._discard()
            return len(text)

    def flush(self) -> None:
        """Flush what was written, or discard it."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._discard()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _discard(self) -> None:
        # The descriptor, not the object: what is still buffered goes there too, also at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


def echo(text: str = "") -> None:
    """Print a line."""
    print(text)


def echo_json(value: Any) -> None:
    """Print one JSON document, indented, keys in the order they were given."""
    import json

    echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def echo_table(columns: Row, rows: Sequence[Row], *, title: str | None = None) -> None:
    """Print rows under their columns: a drawn table on a terminal, else plain text in aligned columns.

    Cells are shown as `visible` has them: a line each, whatever is in them.
    """
    rows = [[visible(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _draw(columns, rows, title)
        return
    if title:
        echo(title)
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    for row in ([name.upper() for name in columns], *rows):
        echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _draw(columns: Row, rows: Sequence[Row], title: str | None) -> None:
    # Imported here: a pipe, a script and --help have no use for it. It honours NO_COLOR by itself.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", title_style="bold")
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        # Text, not str: brackets in a record are not markup.
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
