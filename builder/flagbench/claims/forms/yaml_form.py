"""YAML and JSON: lists of mappings, and flagbench's own claims files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from flagbench.catalog.documents import nested_too_deeply
from flagbench.claims.columns import METRICS, column
from flagbench.claims.table import RawRow, Table, TableError, of_records

_Loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
"""Every value stays the text that was written: `36.50` keeps its last digit."""


def read_structured(text: str, name: str) -> Table | None:
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
    return of_records(list(dict.fromkeys(header for _, cells in records for header in cells)), records)


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
    """The rows in parsed data: lists of mappings, alone or under keys, or mappings by name."""
    if isinstance(data, dict):
        lists = [value for value in data.values() if isinstance(value, list) and value]
        lists = [value for value in lists if all(isinstance(entry, dict) for entry in value)]
        # Lists of sources or of notes are no rows, unless there is nothing else.
        lists = [value for value in lists if any(map(_has_metric, value))] or lists[:1]
        if lists:
            shared = {key: text for key, text in data.items() if isinstance(text, str)}
            return [{**shared, **entry} for value in lists for entry in value]
        if data and all(isinstance(value, dict) for value in data.values()):
            return [{"id": name, **entry} for name, entry in data.items()]
        return [data] if data else None
    if isinstance(data, list) and data and all(isinstance(entry, dict) for entry in data):
        return data
    return None


def _has_metric(entry: Mapping[Any, Any]) -> bool:
    """Whether an entry has a column of a metric, or of metrics by name."""
    found = (column(header) for header in _flat(entry))
    return any(each is not None and each.field in (*METRICS, "metric") for each in found)


def _flat(entry: Mapping[Any, Any]) -> dict[str, str]:
    """One level of nesting opened: `conditions: {batch_size: 96}` is a column `batch_size`."""
    cells: dict[str, str] = {}
    for key, value in entry.items():
        if key == "precision" and isinstance(value, dict):
            cells |= {"precision": str(value.get("label", "")), "executed": str(value.get("executed", ""))}
        elif isinstance(value, dict) and "value" in value and column(str(key)) is not None:
            cells |= [_metric({**value, "name": key})]
        elif isinstance(value, dict):
            cells |= {str(inner): str(text) for inner, text in value.items() if not isinstance(text, dict | list)}
            metrics = [(inner, of) for inner, of in value.items() if isinstance(of, dict) and "value" in of]
            cells |= dict(_metric({**of, "name": inner}) for inner, of in metrics)
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, dict) and "name" in item and "value" in item:
                    cells |= [_metric(item)]
        else:
            cells[str(key)] = str(value)
    return cells


def _metric(item: Mapping[str, Any]) -> tuple[str, str]:
    """A metric with its unit, as a column, and its value."""
    header = f"{item['name']} ({item['unit']})" if item.get("unit") else str(item["name"])
    return header.replace(" (fraction)", ""), _used_of_total(item)


def _used_of_total(metric: Mapping[str, Any]) -> str:
    value = metric.get("printed") or metric["value"]
    return f"{value}/{metric['of']}" if metric.get("of") else str(value)
