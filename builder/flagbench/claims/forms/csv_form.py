"""CSV, with any of several separators."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from flagbench.claims.columns import column
from flagbench.claims.table import Table, TableError, of_records
from flagbench.terminal import brief

_DELIMITERS = (",", ";", "\t", "|")


_HEADER = 3
"""Known columns that a comment has at least, if it is the header of a table without another one."""
_PREAMBLE = 10
"""Lines among which the header is looked for: exports put a title above it."""


def read_csv(text: str, name: str) -> Table:
    """The rows of a CSV text. Lines before the header, and lines that start with `#`, are left out.

    A header may start with `#`, as that of a numbered table, or as numpy writes it.

    Raises TableError if a row has more cells than the header, or the header has a name twice.
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not lines:
        raise TableError(f"{name} has only comments")
    first = lines[:_PREAMBLE]
    if not any(_known_columns(line, one)[0] for line in first for one in _DELIMITERS):
        text, first = _with_header(text, first)
    delimiter = max(_DELIMITERS, key=lambda one: max(_known_columns(line, one) for line in first))
    rows = _read(text, name, delimiter)
    # The header has most known columns; of several such lines it is the first.
    start = max(range(min(_PREAMBLE, len(rows))), key=lambda at: (_known(rows[at][1]), -at))
    (_, headers), *rest = rows[start:]
    _require_unique(headers, name)
    for line, cells in rest:
        if len(cells) > len(headers) and any(cell.strip() for cell in cells[len(headers) :]):
            raise TableError(
                f"{name}, line {line} has {len(cells)} cells, and the header has {len(headers)}",
                remedy="put a cell with a separator in it, such as 1,942.6, in quotes, or use semicolons or tabs",
            )
    return of_records(headers, [(line, dict(zip(headers, cells, strict=False))) for line, cells in rest])


def _read(text: str, name: str, delimiter: str) -> list[tuple[int, list[str]]]:
    """The cells of each line that has any, with its number."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    rows: list[tuple[int, list[str]]] = []
    line = 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells) and not cells[0].startswith("#"):
                rows.append((line, cells))
            line = reader.line_num + 1
    except csv.Error as error:
        raise TableError(f"{name}, line {reader.line_num}: {error}") from None
    return rows


def _with_header(text: str, first: list[str]) -> tuple[str, list[str]]:
    """The text, and its first lines, with the first comment that has the names of columns as a line of its own."""
    for line in text.splitlines():
        header = line[1:].lstrip(" ")
        if line.startswith("#") and any(_known_columns(header, one)[0] >= _HEADER for one in _DELIMITERS):
            return text.replace(line, header, 1), [header, *first]
    return text, first


def _known(cells: Sequence[str]) -> int:
    return sum(column(cell) is not None for cell in cells)


def _known_columns(header: str, delimiter: str) -> tuple[int, int]:
    try:
        cells = next(csv.reader([header], delimiter=delimiter), [])
    except csv.Error:  # reading all of it reports that, with the line
        return 0, 0
    return _known(cells), len(cells)


def _require_unique(headers: Sequence[str], name: str) -> None:
    seen: set[str] = set()
    for header in headers:
        key = header.strip().lower()
        if key and key in seen:
            raise TableError(
                f"{name} has two columns {brief(header.strip(), 40)!r}",
                remedy="keep one of them, or rename the other",
            )
        seen.add(key)
