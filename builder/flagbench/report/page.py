"""A page of text and tables: drawn with rich on a terminal, plain and aligned elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TextIO

_GAP = "  "


@dataclass(frozen=True)
class Table:
    """Rows of text under named columns; those in `right` are set flush right.

    `styles` are rich styles by the whole text of a cell.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[str] = frozenset()
    styles: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Lines:
    """Text, with a rich style for all of it."""

    text: str
    style: str = ""


Block = Table | Lines
"""A part of a page."""


def render(blocks: Sequence[Block], stream: TextIO | None = None) -> str:
    """Blocks as text for `stream` (default stdout), a blank line between them."""
    out = sys.stdout if stream is None else stream
    # What is not a terminal is read by grep and people's logs: no boxes, no wrapping, no colour.
    if out.isatty() and os.environ.get("TERM") != "dumb":
        return _rich(blocks, out)
    return "\n\n".join(b.text if isinstance(b, Lines) else _plain(b) for b in blocks) + "\n"


def _plain(table: Table) -> str:
    widths = [max(map(len, column)) for column in zip(table.columns, *table.rows, strict=True)]
    lines = []
    for row in (table.columns, *table.rows):
        cells = [
            cell.rjust(width) if name in table.right else cell.ljust(width)
            for cell, width, name in zip(row, widths, table.columns, strict=True)
        ]
        lines.append(_GAP.join(cells).rstrip())
    return "\n".join(lines)


def _rich(blocks: Sequence[Block], stream: TextIO) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(file=stream, highlight=False)  # reads NO_COLOR itself
    with console.capture() as captured:
        for index, block in enumerate(blocks):
            if index:
                console.print()
            # Text, never a string: rich would read "[1490, 1530]" as its markup.
            if isinstance(block, Lines):
                console.print(Text(block.text, style=block.style))
                continue
            drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
            for name in block.columns:
                drawn.add_column(name, justify="right" if name in block.right else "left", overflow="fold")
            for row in block.rows:
                drawn.add_row(*(Text(cell, style=block.styles.get(cell, "")) for cell in row))
            console.print(drawn)
    return captured.get()
