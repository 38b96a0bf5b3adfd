"""The rows of a published table as text by column: CSV, YAML, JSON, Markdown, and flagbench's own claims files."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from flagbench.catalog.documents import nested_too_deeply
from flagbench.claims.columns import column
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.terminal import brief, visible

FORMATS = "CSV with a header line, a YAML or JSON list of mappings, a claims/v1 file, or a Markdown table"
MOST_ROWS = 20_000
_DELIMITERS = (",", ";", "\t", "|")
_Loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
"""Every value stays the text that was written: `36.50` keeps its last digit."""


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


def read_table(content: bytes, name: str) -> Table:
    """The table in the bytes of a file; `name` is what errors call it.

    Raises TableError (exit code 3) for what is not UTF-8 or UTF-16 with a byte order mark, is empty, is not one of
    FORMATS, has no column that is known, or more than MOST_ROWS rows.
    """
    text = _decoded(content, name)
    if not text.strip():
        raise TableError(f"{name} is empty")
    table = _markdown(text) or _structured(text, name) or _csv(text, name)
    if not table.rows:
        raise TableError(f"{name} has a header, but no rows")
    if len(table.rows) > MOST_ROWS:
        raise TableError(
            f"{name} has {len(table.rows):,} rows; at most {MOST_ROWS:,} are read", remedy="split the file by case"
        )
    if not any(map(column, table.headers)) and not any(row.nested for row in table.rows):
        shown = ", ".join(brief(header, 40) for header in table.headers[:8])
        raise TableError(
            f"{name} has no column that is known: {shown}",
            remedy="name the columns as in docs/lint-a-table.md, for example device, devices, precision, p_core, mfu",
        )
    return table


def _decoded(content: bytes, name: str) -> str:
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise TableError(
            f"{name} is not {encoding[:6].rstrip('-').upper()} text: {error.reason} at byte {error.start}",
            remedy="save the table as UTF-8",
        ) from None
    if "\0" in text:
        raise TableError(f"{name} is not text: it has a NUL character", remedy="save the table as CSV, UTF-8")
    return text


# -- CSV -----------------------------------------------------------------------------------------------------


def _csv(text: str, name: str) -> Table:
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
    return _of_records(headers, [(line, dict(zip(headers, cells, strict=False))) for line, cells in rest])


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


def _of_records(headers: Sequence[str], records: list[tuple[int, dict[str, str]]], **facts: str) -> Table:
    """A table of cells by header; one with a metric on each line is turned into one with a row for each run."""
    by_field = {found.field: header for header in headers if (found := column(header))}
    if {"metric", "value"} <= by_field.keys():
        headers, records = _pivoted(records, by_field)
    rows = (RawRow(number, line, cells) for number, (line, cells) in enumerate(records, 1))
    return Table(tuple(headers), tuple(rows), facts)


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


# -- YAML and JSON -------------------------------------------------------------------------------------------


def _structured(text: str, name: str) -> Table | None:
    """The rows of a YAML or JSON file; None if the text is neither a list nor a mapping."""
    start = text.lstrip()
    known = re.match(r"(?:---|[\[{]|- |[\w\"' -]+:(?:\s|$)|#)", start)
    first = next((line for line in start.splitlines() if line.strip() and not line.startswith("#")), "")
    if known is None or (first[:1] not in "[{-" and not re.match(r"[\w\"' -]+:(?:\s|$)", first)):
        return None
    if nested_too_deeply(text):
        raise TableError(f"{name} is nested too deeply")
    try:
        data = yaml.load(text, Loader=_Loader)  # builds texts, lists and mappings only
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        what = getattr(error, "problem", None) or type(error).__name__
        raise TableError(f"{name}{where}: not valid YAML: {what}") from None
    if isinstance(data, dict) and isinstance(data.get("claims"), list) and "case" in data:
        return _claims_file(data, name)
    entries = _entries(data)
    if entries is None:
        raise TableError(f"{name} has no list of mappings")
    records = [(number, _flat(entry)) for number, entry in enumerate(entries, 1)]
    return _of_records(list(dict.fromkeys(header for _, cells in records for header in cells)), records)


def _claims_file(data: Mapping[str, Any], name: str) -> Table:
    sources: Any = data.get("sources") if isinstance(data.get("sources"), dict) else {}
    rows = []
    for number, entry in enumerate(data["claims"], 1):
        if not isinstance(entry, dict):
            raise TableError(f"{name}: claims.{number - 1} is not a mapping", remedy="see docs/add-a-case.md")
        key = entry.get("source")
        source = sources.get(key) if isinstance(key, str) else data.get("source")
        rows.append(RawRow(number, number, {}, {**entry, "case": data["case"], "source": source, "sources": sources}))
    return Table((), tuple(rows))


def _entries(data: Any) -> list[Mapping[str, Any]] | None:
    """The rows in parsed data: a list of mappings, alone or under a key, or mappings by name."""
    if isinstance(data, dict):
        for value in data.values():
            if isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
                shared = {key: text for key, text in data.items() if isinstance(text, str)}
                return [{**shared, **entry} for entry in value]
        if data and all(isinstance(value, dict) for value in data.values()):
            return [{"id": name, **entry} for name, entry in data.items()]
        return [data] if data else None
    if isinstance(data, list) and data and all(isinstance(entry, dict) for entry in data):
        return data
    return None


def _flat(entry: Mapping[Any, Any]) -> dict[str, str]:
    """One level of nesting opened: `conditions: {batch_size: 96}` is a column `batch_size`."""
    cells: dict[str, str] = {}
    for key, value in entry.items():
        if key == "precision" and isinstance(value, dict):
            cells |= {"precision": str(value.get("label", "")), "executed": str(value.get("executed", ""))}
        elif isinstance(value, dict):
            cells |= {str(inner): str(text) for inner, text in value.items() if not isinstance(text, dict | list)}
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, dict) and "name" in item and "value" in item:
                    header = f"{item['name']} ({item['unit']})" if item.get("unit") else str(item["name"])
                    cells[header.replace(" (fraction)", "")] = _used_of_total(item)
        else:
            cells[str(key)] = str(value)
    return cells


def _used_of_total(metric: Mapping[str, Any]) -> str:
    value = metric.get("printed") or metric["value"]
    return f"{value}/{metric['of']}" if metric.get("of") else str(value)


# -- Markdown ------------------------------------------------------------------------------------------------

_RULE = re.compile(r"\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*")
_DEVICE_LINE = re.compile(
    r"(?:\u52a0\u901f\u5361\u578b\u53f7|accelerator(?: model)?)\s*[:\uff1a]\s*(.+)", re.IGNORECASE
)


def _markdown(text: str) -> Table | None:
    """The rows of all Markdown tables whose header has a known metric; None if there is none."""
    lines = text.splitlines()
    facts, best = dict[str, str](), list[tuple[list[str], list[tuple[int, dict[str, str]]]]]()
    for headers, rows in _pipe_tables(lines):
        fields = {found.field for header in headers if (found := column(header))}
        if fields & {"metric"} and len(fields) <= 2:
            facts |= _general_facts(headers, rows)
        elif fields & {"config", "precision", "device", "case", "p_core", "mfu", "mem_peak"}:
            best.append((headers, rows))
    if not best:
        return None
    if stated := next((match for line in lines if (match := _DEVICE_LINE.search(line))), None):
        facts["device"] = stated[1].strip()
    headers = list(dict.fromkeys(header for some, _ in best for header in some))
    return _of_records(headers, [row for _, rows in best for row in rows], **facts)


def _pipe_tables(lines: list[str]) -> Iterator[tuple[list[str], list[tuple[int, dict[str, str]]]]]:
    for index in range(1, len(lines)):
        if "|" not in lines[index] or not _RULE.fullmatch(lines[index]) or "|" not in lines[index - 1]:
            continue
        headers, rows = _pipe_cells(lines[index - 1]), []
        for number in range(index + 1, len(lines)):
            if "|" not in lines[number]:
                break
            rows.append((number + 1, dict(zip(headers, _pipe_cells(lines[number]), strict=False))))
        yield headers, rows


def _pipe_cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def _general_facts(headers: list[str], rows: list[tuple[int, dict[str, str]]]) -> dict[str, str]:
    """What a table of names and values says of the rows of the others: FlagPerf's has the model and the device."""
    found = {}
    for _, cells in rows:
        name, value = ([*cells.values(), "", ""])[:2]
        named = column(name)
        if named and named.field in ("case", "device") and value:
            found[named.field] = value
    return found
