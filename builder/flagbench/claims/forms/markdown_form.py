"""Markdown: the tables of a page, and what the page says of all their rows."""

from __future__ import annotations

import re
from collections.abc import Iterator

from flagbench.claims.columns import column
from flagbench.claims.table import Table, of_records

_RULE = re.compile(r"\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*")
_DEVICE_LINE = re.compile(
    r"(?:\u52a0\u901f\u5361\u578b\u53f7|accelerator(?: model)?)\s*[:\uff1a]\s*(.+)", re.IGNORECASE
)


def read_markdown(text: str) -> Table | None:
    """The rows of all Markdown tables whose header has a known metric; None without such a table."""
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
    return of_records(headers, [row for _, rows in best for row in rows], **facts)


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
