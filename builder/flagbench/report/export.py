"""Rows as CSV and as a Markdown table, for other programs to show."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

from flagbench.report.markdown import table
from flagbench.terminal import visible

Cell = str | float | int | None


def to_csv(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """RFC 4180, with line feeds. A text that a spreadsheet would take for a formula gets an apostrophe before it."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([[_harmless(cell) for cell in row] for row in (columns, *rows)])
    return out.getvalue()


def to_markdown(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """A pipe table of GitHub's Markdown; what a cell holds is shown as it is."""
    return table(list(map(_escaped, columns)), [list(map(_escaped, row)) for row in rows])


def _harmless(cell: Cell) -> Cell:
    if not isinstance(cell, str):
        return cell
    cell = visible(cell)
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@")) else cell


def _escaped(cell: Cell) -> str:
    """Text with Markdown's characters escaped; `table` escapes `|`."""
    if not isinstance(cell, str):
        return "" if cell is None else f"{cell:.6g}"
    return re.sub(r"([\\`*_\[\]<>&#])", r"\\\1", visible(cell))
