"""Rows as CSV and as a Markdown table."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

from flagbench.terminal import visible

Cell = str | float | int | None


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A pipe table of Markdown with a newline at its end; a cell holds Markdown, and is one line."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(map(cell, line))} |\n" for line in lines)


def cell(value: object) -> str:
    """A value as it stands in `table`, its `|` escaped."""
    return str(value).replace("|", "\\|").replace("\n", " ")


def to_markdown(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """A table in which every cell is shown as it is: Markdown's characters are escaped."""
    return table(list(map(_escaped, columns)), [list(map(_escaped, row)) for row in rows])


def to_csv(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """RFC 4180, with line feeds. A text that a spreadsheet would take for a formula gets an apostrophe before it."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([[_harmless(cell) for cell in row] for row in (columns, *rows)])
    return out.getvalue()


def _harmless(cell: Cell) -> Cell:
    if not isinstance(cell, str):
        return cell
    cell = visible(cell)
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@")) else cell


def _escaped(cell: Cell) -> str:
    """`table` escapes `|`."""
    if not isinstance(cell, str):
        return "" if cell is None else f"{cell:.6g}"
    return re.sub(r"([\\`*_\[\]<>&#])", r"\\\1", visible(cell))
