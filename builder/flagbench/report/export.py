"""Stored records for other programs: `results export` writes them as lines of JSON, as CSV or as a Markdown table.

The generated pages of the docs have their tables in Markdown from here, too.
"""

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
from flagbench.records.series import load_all
from flagbench.records.store import Store, StoredRecord

Cell = str | float | int | None
Format = Literal["csv", "md", "jsonl"]

_SUMMARY_FIELDS = ("host", "preset", "division", "state", "exit_code", "reason", "duration", "verdict", "claim")
"""The fields of a record's summary that are exported."""
_COLUMNS = ("record_id", "created_at", "case", "stack", *_SUMMARY_FIELDS)
"""The first columns of an exported table; the metrics follow them."""


def as_json(entry: StoredRecord) -> dict[str, Any]:
    """Return the summary of a record as a JSON object. The summary fields of a damaged record are null."""
    document: dict[str, Any] = {
        "record_id": entry.record_id,
        "case": entry.case,
        "stack": entry.stack,
        "created_at": entry.created_at,
        "location": entry.location,
    }
    for name in _SUMMARY_FIELDS:
        document[name] = getattr(entry.summary, name, None)
    document["size"] = entry.blob.size
    document["metrics"] = {}
    if entry.summary is not None:
        document["metrics"] = entry.summary.metrics
    if entry.error is not None:
        document["error"] = entry.error
    return document


def record_lines(store: Store, entries: Sequence[StoredRecord]) -> list[str]:
    """Return each record as one line of JSON with its newline. One that cannot be read is noted on stderr.

    A record that is stored in one line is exported byte for byte: a series has the sha256 of its records.
    """
    lines = []
    for entry, read in store.read_all(entries):
        if isinstance(read, FlagbenchError):
            note(entry.location, entry.problem or read.message)
            continue
        text = read.content.decode("utf-8").removesuffix("\n")
        if "\n" in text:
            text = _to_one_line(read.record.raw)
        lines.append(f"{text}\n")
    return lines


def series_lines(store: Store, entries: Sequence[StoredRecord]) -> Iterator[str]:
    """Yield each series that these records are runs of as one line of JSON with its newline.

    Records of a series that are not among these are noted on stderr, and so is a series that cannot be read.
    """
    exported = {entry.record_id for entry in entries}
    for series_id, series in load_all(store):
        if isinstance(series, FlagbenchError):
            note(series_id, series.message)
            continue
        record_ids = [run.record_id for run in series.runs if run.record_id is not None]
        if not exported.intersection(record_ids):
            continue
        yield _to_one_line(series.to_dict()) + "\n"
        not_exported = [record_id for record_id in record_ids if record_id not in exported]
        if not_exported:
            note(f"series {series_id}", f"not exported: {', '.join(not_exported)}")


def _to_one_line(document: dict[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def summary_rows(entries: Sequence[StoredRecord], format: Format) -> str:
    """Return a table with the summary of each record as a row, and a column for each metric that a record has.

    Damaged records are left out and noted on stderr.
    """
    documents = []
    metrics: set[str] = set()
    for entry in entries:
        if entry.error is not None:
            note(entry.location, entry.error)
            continue
        document = as_json(entry)
        documents.append(document)
        metrics.update(document["metrics"])
    metric_names = sorted(metrics)
    columns = [*_COLUMNS, *metric_names]
    rows = []
    for document in documents:
        row = [document[name] for name in _COLUMNS]
        row += [document["metrics"].get(name) for name in metric_names]
        rows.append(row)
    if format == "csv":
        return to_csv(columns, rows)
    return to_markdown(columns, rows)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a pipe table of Markdown with a newline at its end. The cells are Markdown, such as links."""
    lines = []
    for row in (columns, ["---"] * len(columns), *rows):
        lines.append(f"| {' | '.join(map(cell, row))} |\n")
    return "".join(lines)


def cell(value: object) -> str:
    """Return a value as the text of a cell of `table`: in one line, with `|` escaped."""
    return str(value).replace("|", "\\|").replace("\n", " ")


def to_markdown(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a pipe table of plain text: characters with a meaning in Markdown are escaped."""
    escaped_columns = list(map(_escape_markdown, columns))
    escaped_rows = [list(map(_escape_markdown, row)) for row in rows]
    return table(escaped_columns, escaped_rows)


def to_csv(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a table as CSV (RFC 4180, but with line feeds)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in (columns, *rows):
        writer.writerow(map(_defuse_formula, row))
    return text.getvalue()


def _defuse_formula(cell: Cell) -> Cell:
    """Return a cell that a spreadsheet shows as it is: text that begins like a formula gets a leading apostrophe."""
    if not isinstance(cell, str):
        return cell
    text = visible(cell)
    if text.startswith(("=", "+", "-", "@")):
        return f"'{text}"
    return text


def _escape_markdown(cell: Cell) -> str:
    """Return a cell with Markdown's characters escaped, except `|`, which `table` escapes."""
    if cell is None:
        return ""
    if not isinstance(cell, str):
        return f"{cell:.6g}"
    return re.sub(r"([\\`*_\[\]<>&#])", r"\\\1", visible(cell))
