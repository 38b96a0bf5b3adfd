"""A table as text by column, and the error for a file that holds none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flagbench.claims.columns import column
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.terminal import visible

FORMATS = "CSV with a header line, a YAML or JSON list of mappings, a claims/v1 file, or a Markdown table"


class TableError(FlagbenchError):
    """A file that holds no table."""

    def __init__(self, message: str, *, remedy: str = f"give {FORMATS}") -> None:
        super().__init__(visible(message), remedy=remedy, code=ExitCode.DATA)


@dataclass(frozen=True)
class RawRow:
    """One row: its cells by header, and what the text around the table says of all rows."""

    number: int
    """From 1, without the header."""
    line: int
    cells: Mapping[str, str]
    nested: Mapping[str, Any] = field(default_factory=dict)
    """The entry of a claims/v1 file, its `source` resolved; empty for every other table."""


@dataclass(frozen=True)
class Table:
    """The rows of a file, in its order."""

    headers: tuple[str, ...]
    rows: tuple[RawRow, ...]
    facts: Mapping[str, str] = field(default_factory=dict)
    """What the text around the rows says of all of them: `case`, `device`."""


def of_records(headers: Sequence[str], records: list[tuple[int, dict[str, str]]], **facts: str) -> Table:
    """A table of cells by header.

    One with a metric on each line, or with a run in each column, is turned into one with a row for each run.
    """
    if _is_transposed(headers, records):
        headers, records = _transposed(headers, records)
    by_field = {found.field: header for header in headers if (found := column(header))}
    if {"metric", "value"} <= by_field.keys():
        headers, records = _pivoted(records, by_field)
    rows = (RawRow(number, line, cells) for number, (line, cells) in enumerate(records, 1))
    return Table(tuple(headers), tuple(rows), facts)


def _is_transposed(headers: Sequence[str], records: list[tuple[int, dict[str, str]]]) -> bool:
    """Whether the first column has the names of metrics, and the header those of runs."""
    if len(headers) < 2 or len(records) < 3 or any(map(column, headers[1:])):
        return False
    names = [cells.get(headers[0], "") for _, cells in records]
    return sum(column(name) is not None for name in names) > len(names) / 2


def _transposed(
    headers: Sequence[str], records: list[tuple[int, dict[str, str]]]
) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    names = [cells.get(headers[0], "") for _, cells in records]
    runs = []
    for run in headers[1:]:
        runs.append(
            (records[0][0] - 1, {"config": run, **{cells[headers[0]]: cells.get(run, "") for _, cells in records}})
        )
    return list(dict.fromkeys(("config", *names))), runs


def _pivoted(
    records: list[tuple[int, dict[str, str]]], by_field: Mapping[str, str]
) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Lines of one metric each as rows: lines that agree in every other column are one row."""
    metric, value, unit = by_field["metric"], by_field["value"], by_field.get("unit")
    found: dict[tuple[Any, ...], tuple[int, dict[str, str]]] = {}
    headers: dict[str, None] = {}
    for line, cells in records:
        kept = {header: cell for header, cell in cells.items() if header not in (metric, value, unit)}
        name = cells.get(metric, "")
        unit_text = cells.get(unit, "").strip() if unit else ""
        simple = unit_text.split(" ")[0] if unit_text else ""
        header = f"{name} ({simple})" if simple and simple != "fraction" else name
        again = 0
        while header in found.setdefault((again, tuple(kept.values())), (line, dict(kept)))[1]:
            again += 1
        found[again, tuple(kept.values())][1][header] = cells.get(value, "")
        headers |= dict.fromkeys([*kept, header])
    return list(headers), list(found.values())
