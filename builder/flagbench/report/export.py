"""Stored records for other programs: as lines of JSON, as CSV, and as a Markdown table."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from flagbench.console.terminal import visible
from flagbench.errors import FlagbenchError
from flagbench.records.named import note
from flagbench.records.read import read_record
from flagbench.records.series import load_all
from flagbench.records.store import Store, StoredRecord

Cell = str | float | int | None
Format = Literal["csv", "md", "jsonl"]

_SUMMARY = ("host", "preset", "division", "state", "exit_code", "reason", "duration", "verdict", "claim")
_COLUMNS = ("record_id", "created_at", "case", "stack", *_SUMMARY)


def as_json(entry: StoredRecord) -> dict[str, Any]:
    """What a listing knows of a record, for a script."""
    summary = entry.summary
    return {
        **{name: getattr(entry, name) for name in ("record_id", "case", "stack", "created_at", "location")},
        **{name: getattr(summary, name, None) for name in _SUMMARY},
        "size": entry.blob.size,
        "metrics": {} if summary is None else summary.metrics,
        **({} if entry.error is None else {"error": entry.error}),
    }


def record_lines(place: Store, entries: Sequence[StoredRecord]) -> list[str]:
    """Each record as one line of JSON, byte for byte if it is stored so: a series has the sha256 of its records."""
    lines = []
    for entry, content in place.read_all(entries):
        try:
            if isinstance(content, FlagbenchError):
                raise content
            raw = read_record(content).raw
        except FlagbenchError as error:
            note(entry.location, entry.problem or error.message)
            continue
        text = content.decode("utf-8").removesuffix("\n")
        lines.append((text if "\n" not in text else _one_line(raw)) + "\n")
    return lines


def series_lines(place: Store, entries: Sequence[StoredRecord]) -> Iterator[str]:
    """The series of these records, each as one line of JSON."""
    exported = {entry.record_id for entry in entries}
    for series_id, series in load_all(place):
        if isinstance(series, FlagbenchError):
            note(series_id, series.message)
            continue
        names = [run.record_id for run in series.runs if run.record_id is not None]
        if not exported.intersection(names):
            continue
        yield _one_line(series.to_dict()) + "\n"
        if lacking := [name for name in names if name not in exported]:
            note(f"series {series_id}", f"not exported: {', '.join(lacking)}")


def _one_line(document: dict[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def summary_rows(entries: Sequence[StoredRecord], format: Format) -> str:
    """What a listing knows of each record, a row each, and a column per metric. Damaged ones are noted on stderr."""
    for entry in entries:
        if entry.error is not None:
            note(entry.location, entry.error)
    good = [as_json(entry) for entry in entries if entry.error is None]
    metrics = sorted({name for entry in good for name in entry["metrics"]})
    rows = [
        [*(entry[name] for name in _COLUMNS), *(entry["metrics"].get(name) for name in metrics)] for entry in good
    ]
    return (to_csv if format == "csv" else to_markdown)([*_COLUMNS, *metrics], rows)


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
