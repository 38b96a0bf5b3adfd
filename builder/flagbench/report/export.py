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
    """The summary of a record, as JSON."""
    document: dict[str, Any] = {
        "record_id": entry.record_id,
        "case": entry.case,
        "stack": entry.stack,
        "created_at": entry.created_at,
        "location": entry.location,
    }
    for name in _SUMMARY:
        document[name] = getattr(entry.summary, name, None)
    document["size"] = entry.blob.size
    document["metrics"] = {}
    if entry.summary is not None:
        document["metrics"] = entry.summary.metrics
    if entry.error is not None:
        document["error"] = entry.error
    return document


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
        if "\n" in text:
            text = _one_line(raw)
        lines.append(f"{text}\n")
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
        lacking = [name for name in names if name not in exported]
        if lacking:
            note(f"series {series_id}", f"not exported: {', '.join(lacking)}")


def _one_line(document: dict[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def summary_rows(entries: Sequence[StoredRecord], format: Format) -> str:
    """The summary of each record as a row, with a column per metric. Damaged records are noted on stderr."""
    documents = []
    metrics: set[str] = set()
    for entry in entries:
        if entry.error is not None:
            note(entry.location, entry.error)
            continue
        document = as_json(entry)
        documents.append(document)
        metrics.update(document["metrics"])
    names = sorted(metrics)
    columns = [*_COLUMNS, *names]
    rows = []
    for document in documents:
        row = [document[name] for name in _COLUMNS]
        row += [document["metrics"].get(name) for name in names]
        rows.append(row)
    if format == "csv":
        return to_csv(columns, rows)
    return to_markdown(columns, rows)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A pipe table of Markdown with a newline at its end; a cell holds Markdown, and is one line."""
    lines = []
    for row in (columns, ["---"] * len(columns), *rows):
        lines.append(f"| {' | '.join(map(cell, row))} |\n")
    return "".join(lines)


def cell(value: object) -> str:
    """A value as it stands in `table`, its `|` escaped."""
    return str(value).replace("|", "\\|").replace("\n", " ")


def to_markdown(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """A table of plain text: characters with a meaning in Markdown are escaped."""
    return table(list(map(_escaped, columns)), [list(map(_escaped, row)) for row in rows])


def to_csv(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """RFC 4180, with line feeds. Text that a spreadsheet would take for a formula gets a leading apostrophe."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in (columns, *rows):
        writer.writerow(map(_harmless, row))
    return text.getvalue()


def _harmless(cell: Cell) -> Cell:
    if not isinstance(cell, str):
        return cell
    cell = visible(cell)
    if cell.startswith(("=", "+", "-", "@")):
        return f"'{cell}"
    return cell


def _escaped(cell: Cell) -> str:
    """A cell with Markdown's characters escaped, but for `|`, which `table` escapes."""
    if cell is None:
        return ""
    if not isinstance(cell, str):
        return f"{cell:.6g}"
    return re.sub(r"([\\`*_\[\]<>&#])", r"\\\1", visible(cell))
