"""A page of text and tables: drawn with rich on a terminal, plain and aligned elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from flagbench.terminal import visible

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
    """Lines of text, with a rich style for all of them."""

    lines: tuple[str, ...]
    style: str = ""


Block = Table | Lines
"""A part of a page."""


def render(blocks: Sequence[Block], stream: TextIO | None = None) -> str:
    """Blocks as text for `stream` (default stdout), a blank line between them; each line and cell is `visible`."""
    out = sys.stdout if stream is None else stream
    # What is not a terminal is read by grep and people's logs: no boxes, no wrapping, no colour.
    if out.isatty() and os.environ.get("TERM") != "dumb":
        return _rich(blocks, out)
    return "\n\n".join(_text(b) if isinstance(b, Lines) else _plain(b) for b in blocks) + "\n"


def _text(block: Lines) -> str:
    return "\n".join(map(visible, block.lines))


def _rows(table: Table) -> list[list[str]]:
    return [[visible(cell) for cell in row] for row in table.rows]


def _plain(table: Table) -> str:
    rows = [table.columns, *_rows(table)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
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
                console.print(Text(_text(block), style=block.style))
                continue
            drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
            for name in block.columns:
                drawn.add_column(name, justify="right" if name in block.right else "left", overflow="fold")
            for row in _rows(block):
                drawn.add_row(*(Text(cell, style=block.styles.get(cell, "")) for cell in row))
            console.print(drawn)
    return captured.get()
