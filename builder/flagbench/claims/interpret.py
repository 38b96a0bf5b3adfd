"""From the cells of a table to rows: what each is a row of, its device, its conditions and its metrics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from flagbench.catalog.model import Case, Catalog
from flagbench.claims.cards import Card, cards, find_cards
from flagbench.claims.claims_file import row_of_claim
from flagbench.claims.columns import METRICS, PER_DEVICE, RATES, THROUGHPUT, Column, column, scale_of_unit
from flagbench.claims.finding import Finding
from flagbench.claims.labels import Shape, find_case, read_label, read_layout, read_precision, read_settings
from flagbench.claims.numbers import Cell, is_blank, is_unstated, plain, read_number, unit_of, uses_decimal_comma
from flagbench.claims.rows import Publication, Row
from flagbench.claims.table import RawRow, Table
from flagbench.terminal import brief

_IDENTITY = (
    "id",
    "case",
    "device",
    "config",
    "nodes",
    "gpus",
    "per_node",
    "devices",
    "precision",
    "executed",
    "settings",
)
_NOT_CONDITIONS = frozenset((*_IDENTITY, *METRICS, "memory_total", "metric", "value", "unit", "aligned", "image"))
_MOST_PER_NODE = 16
"""A column `gpus` with more than that beside a column `nodes` holds the total."""


@dataclass(frozen=True)
class Reading:
    """The rows of a table, and the columns that no rule uses."""

    rows: tuple[Row, ...]
    unknown: tuple[str, ...]


@dataclass
class _Cells:
    """The cells of a row by field, while it is read."""

    row: RawRow
    name: str
    texts: dict[str, str] = field(default_factory=dict)
    columns: dict[str, Column] = field(default_factory=dict)
    """The column that a text is from: of several for one metric, that with a value."""
    blank: set[str] = field(default_factory=set)
    unstated: set[str] = field(default_factory=set)
    problems: list[Finding] = field(default_factory=list)

    def problem(self, field: str, rule: str, message: str) -> None:
        self.problems.append(Finding(self.row.number, self.row.line, self.name, field, rule, message))

    def count(self, field: str) -> int | None:
        """A cell as a number of things."""
        if field not in self.texts:
            return None
        cell = read_number(self.texts[field])
        if cell is None or not 1 <= cell.value <= 10**7 or cell.value != int(cell.value):
            self.problem(
                field, "not-a-number", f"{brief(self.texts[field], 40)!r} is not a count; write a whole number"
            )
            return None
        return int(cell.value)


def interpret(table: Table, catalog: Catalog, default_case: Case | None = None) -> Reading:
    """The rows of a table. `default_case` is the case of rows that name none."""
    known = cards(catalog)
    columns = {header: found for header in table.headers if (found := column(header))}
    comma = uses_decimal_comma([text for row in table.rows for text in row.cells.values()])
    names = _names(table, columns)
    rows = []
    for raw, name in zip(table.rows, names, strict=True):
        if raw.nested:
            rows.append(row_of_claim(raw, catalog, known, name))
        else:
            rows.append(_row(raw, name, columns, table.facts, catalog, known, default_case, comma=comma))
    unknown = tuple(header for header in table.headers if header.strip() and header not in columns)
    return Reading(tuple(rows), unknown)


def _names(table: Table, columns: Mapping[str, Column]) -> list[str]:
    """What findings call the rows: their ids where each has one of its own, else their numbers."""
    header = next((header for header, found in columns.items() if found.field == "id"), None)
    ids = [
        str(row.nested.get("id", "")) if row.nested else row.cells.get(header, "") if header else ""
        for row in table.rows
    ]
    unique = all(ids) and len(set(ids)) == len(ids)
    return [id_ if unique else f"row {row.number}" for id_, row in zip(ids, table.rows, strict=True)]


def _row(
    raw: RawRow,
    name: str,
    columns: Mapping[str, Column],
    facts: Mapping[str, str],
    catalog: Catalog,
    known: tuple[Card, ...],
    default_case: Case | None,
    *,
    comma: bool,
) -> Row:
    cells = _read_cells(raw, name, columns)
    texts = cells.texts
    settings = read_settings(texts.get("settings", ""))
    # A column of a condition says more than the row's list of what was changed.
    texts = cells.texts = {**settings, **texts}
    label = read_label(texts["config"]) if "config" in texts else Shape()
    case = _case(texts, facts, catalog, default_case)
    nodes, devices = _counts(cells, label)
    layout = read_layout(f"{texts.get('layout', '')} {texts.get('config', '')} {texts.get('settings', '')}")
    if layout and "layout" not in texts:
        texts["layout"] = " ".join(f"{key}{degree}" for key, degree in layout.items())
    device, found = _device(texts, facts, label, known)
    metrics, total = _metrics(cells, case, devices, comma=comma)
    if len(found) > 1 and total is not None:
        found = tuple(card for card in found if abs(card.memory_gib - total.value) <= 0.05 * total.value) or found
    fields = {column.field for column in columns.values()} | settings.keys()
    return Row(
        number=raw.number,
        line=raw.line,
        name=name,
        case=case,
        device=device,
        cards=found,
        nodes=nodes,
        devices=devices,
        precision=read_precision(texts["precision"]) if "precision" in texts else "",
        executed=read_precision(texts["executed"]) if "executed" in texts else "",
        conditions={key: text for key, text in texts.items() if key not in _NOT_CONDITIONS},
        metrics=metrics,
        memory_total=total,
        label=texts.get("config", ""),
        settings=texts.get("settings", ""),
        fields=frozenset(fields),
        blank=frozenset(cells.blank - texts.keys()),
        unstated=frozenset(cells.unstated - texts.keys()),
        publication=Publication(aligned=texts.get("aligned", "").lower() in ("true", "yes")),
        problems=tuple(cells.problems),
    )


def _read_cells(raw: RawRow, name: str, columns: Mapping[str, Column]) -> _Cells:
    cells = _Cells(raw, name)
    for header, found in columns.items():
        text = plain(raw.cells.get(header) or "")
        field = found.field
        if field == "device" and re.fullmatch(r"\d+", text):
            field = "gpus"  # a column `GPU` that holds a number
        if field == THROUGHPUT and found.counts:
            field = f"{THROUGHPUT} in {found.counts}"
        if field in cells.texts and field != header.strip().lower():
            continue  # of two columns for one thing, the first, or the one with the field's own name
        meaningful = field in ("recompute", "attention", "division", "converged") and text.lower() == "none"
        if not is_blank(text) or meaningful:
            cells.texts[field] = text
            cells.columns[field] = found
        elif is_unstated(text):
            cells.unstated.add(field)
        else:
            cells.blank.add(field)
    return cells


def _case(texts: Mapping[str, str], facts: Mapping[str, str], catalog: Catalog, default: Case | None) -> Case | None:
    claimed = texts.get("id", "").partition("/")[0]
    named = next((text for text in (texts.get("case"), facts.get("case")) if text), "")
    return find_case(named, catalog.cases) or catalog.cases.get(claimed) or default


def _counts(cells: _Cells, label: Shape) -> tuple[int | None, int | None]:
    """Nodes and devices in all, from columns and from the label; a contradiction is noted."""
    nodes, total, per_node = cells.count("nodes"), cells.count("devices"), cells.count("per_node")
    gpus = cells.count("gpus")
    if gpus is not None and total is None and per_node is None:
        of_label = label.devices
        if nodes is None or nodes == 1 or gpus == of_label or (gpus > _MOST_PER_NODE // 2 and gpus % nodes == 0):
            total = gpus
        else:
            per_node = gpus
    elif gpus is not None and total is None:
        total = gpus
    if nodes is None:
        nodes = label.nodes
    if total is None and per_node is not None:
        total = per_node * (nodes or 1)
    elif total is not None and per_node is not None and nodes is not None and total != nodes * per_node:
        cells.problem(
            "devices",
            "contradiction",
            f"{total} devices, but {nodes} nodes x {per_node} are {nodes * per_node}; correct one of them",
        )
    if total is not None and label.devices is not None and total != label.devices:
        cells.problem(
            "devices",
            "contradiction",
            f"{total} devices, but the label {brief(cells.texts['config'], 60)!r} says {label.devices}; correct one",
        )
    if label.cards is not None and label.devices is not None and label.cards != label.devices:
        cells.problem(
            "devices",
            "label",
            f"the label says {label.cards} cards in all, and {label.nodes} nodes x "
            f"{label.devices // (label.nodes or 1)} are {label.devices}; write the total number of devices",
        )
    if total is None:
        total = label.devices
    return nodes or (1 if total is not None and total <= _MOST_PER_NODE else None), total


def _device(
    texts: Mapping[str, str], facts: Mapping[str, str], label: Shape, known: tuple[Card, ...]
) -> tuple[str, tuple[Card, ...]]:
    """What the row calls its device, and which accelerators that may be: the most specific name decides."""
    named = [text for text in (texts.get("device"), label.device) if text]
    device = named[0] if named else facts.get("device", "")
    found = find_cards(device, known)
    general = find_cards(facts.get("device", ""), known)
    if (not found and not named) or (
        general and len(general) < len(found) and all(card in found for card in general)
    ):
        found = general
    return device, found


def _metrics(
    cells: _Cells,
    case: Case | None,
    devices: int | None,
    *,
    comma: bool,
) -> tuple[dict[str, Cell], Cell | None]:
    metrics: dict[str, Cell] = {}
    total = None
    for field_name, found in cells.columns.items():
        text = cells.texts[field_name]
        if found.field not in (*METRICS, "memory_total"):
            continue
        cell = read_number(text, decimal_comma=comma)
        if cell is None:
            message = f"{brief(text, 40)!r} is not a number; write only the number, or / for an empty cell"
            cells.problem(found.field, "not-a-number", message)
            continue
        scale = found.scale
        if found.scale == 0.01 and text.rstrip().endswith("%"):
            scale = 1.0
        scale = scale_of_unit(found.field, unit_of(text)) or scale
        cell = cell if scale == 1.0 else cell.scaled(scale)
        if found.field == "memory_total":
            total = cell
            continue
        if found.field == "mem_peak" and (match := re.search(r"[/|]\s*(\d.*)$", text)):
            of = read_number(match[1], decimal_comma=comma)
            total = None if of is None else of.scaled(scale_of_unit(found.field, unit_of(match[1])) or found.scale)
        _place(metrics, cell, found, case, devices)
    return metrics, total


def _place(metrics: dict[str, Cell], cell: Cell, found: Column, case: Case | None, devices: int | None) -> None:
    """Put a number under its metric: a speed of one device where the case has that of the job, and the reverse."""
    name = found.field
    if name not in (*RATES, THROUGHPUT, PER_DEVICE):
        bare = name in ("acc", "mfu", "hfu") and "%" not in cell.text and found.scale == 1.0
        metrics[name] = _fraction(cell) if bare else cell
        return
    counts_other = case is not None and found.counts is not None and found.counts != case.unit
    if counts_other:
        metrics.setdefault(f"{found.counts}_per_second", _of_job(cell, devices) if found.per_device else cell)
        return
    unnamed = name == THROUGHPUT or (case is not None and case.metric(name) is None and name == PER_DEVICE)
    if unnamed:
        name = case.gate if case is not None else "p_core"
    spec = None if case is None else case.metric(name)
    of_device = name == PER_DEVICE if spec is None else spec.scope == "device"
    if found.per_device and not of_device:
        cell = _of_job(cell, devices)
    elif of_device and not found.per_device and found.field == THROUGHPUT and devices:
        cell = cell.scaled(1 / devices)
    if unnamed:
        metrics.setdefault(name, cell)  # a column that says which speed it is counts more
    else:
        metrics[name] = cell


def _of_job(cell: Cell, devices: int | None) -> Cell:
    return cell.scaled(devices or 1)


def _fraction(cell: Cell) -> Cell:
    """A percentage without its sign, as a fraction: `36.1` cannot be one, and neither can a value above 100."""
    return cell.scaled(0.01) if 2 <= cell.value <= 100 else cell
