"""CSV, with any of several separators."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from flagbench.claims.columns import column
from flagbench.claims.table import Table, TableError, of_records
from flagbench.terminal import brief

_DELIMITERS = (",", ";", "\t", "|")


def read_csv(text: str, name: str) -> Table:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not lines:
        raise TableError(f"{name} has only comments")
    delimiter = max(_DELIMITERS, key=lambda one: _known_columns(lines[0], one))
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
    (_, headers), *rest = rows
    _require_unique(headers, name)
    for line, cells in rest:
        if len(cells) > len(headers) and any(cell.strip() for cell in cells[len(headers) :]):
            raise TableError(
                f"{name}, line {line} has {len(cells)} cells, and the header has {len(headers)}",
                remedy="put a cell with a separator in it, such as 1,942.6, in quotes, or use semicolons or tabs",
            )
    return of_records(headers, [(line, dict(zip(headers, cells, strict=False))) for line, cells in rest])


def _known_columns(header: str, delimiter: str) -> tuple[int, int]:
    cells = next(csv.reader([header], delimiter=delimiter), [])
    return sum(column(cell) is not None for cell in cells), len(cells)


def _require_unique(headers: Sequence[str], name: str) -> None:
    seen: dict[str, str] = {}
    for header in headers:
        if not header.strip():
            continue
        known = column(header)
        key = known.field if known and known.field != "settings" else header.strip().lower()
        if key in seen:
            raise TableError(
                f"{name} has two columns for {key}: {brief(seen[key], 40)!r} and {brief(header, 40)!r}",
                remedy="keep one of them, or rename the other",
            )
        seen[key] = header
