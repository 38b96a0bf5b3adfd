"""A row from an entry of flagbench's own claims files, `claims/v1`; its anomalies are not read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flagbench.catalog.model import NOT_PUBLISHED, Catalog
from flagbench.claims.cards import Card, find_cards
from flagbench.claims.finding import Finding
from flagbench.claims.labels import read_label, read_precision
from flagbench.claims.numbers import Cell, read_number
from flagbench.claims.rows import Publication, Row
from flagbench.claims.table import RawRow


def row_of_claim(raw: RawRow, catalog: Catalog, known: tuple[Card, ...], name: str) -> Row:
    """The row that an entry describes. Fields of a wrong kind are taken as missing."""
    entry = raw.nested
    case = catalog.cases.get(str(entry["case"]))
    conditions = {str(key): str(value) for key, value in _mapping(entry, "conditions").items()}
    precision = _mapping(entry, "precision")
    label = str(entry.get("row", ""))
    shape = read_label(label)
    metrics, total, withdrawn = _metrics(entry)
    device = conditions.get("device_model", "")
    found = find_cards(device, known)
    named = find_cards(shape.device, known)
    if len(named) > len(found) and {tuple(sorted(card.peaks.items())) for card in named} != {
        tuple(sorted(card.peaks.items())) for card in found
    }:
        found = named  # the row itself does not say which
    nodes, devices = (_count(conditions.get(key)) for key in ("nodes", "devices"))
    unstated = {key for key, value in conditions.items() if value == NOT_PUBLISHED}
    stated_precision = read_precision(str(precision.get("label", "")))
    return Row(
        number=raw.number,
        line=raw.line,
        name=name,
        case=case,
        device="" if device == NOT_PUBLISHED else device,
        cards=found,
        nodes=nodes,
        devices=devices,
        precision="" if stated_precision == NOT_PUBLISHED else stated_precision,
        executed=read_precision(str(precision.get("executed", ""))),
        conditions={key: value for key, value in conditions.items() if key not in unstated},
        metrics=metrics,
        memory_total=total,
        label=label,
        settings=label.rpartition("|")[2].strip(),
        fields=frozenset({*conditions, *metrics, "device", "precision", "devices", "nodes"}),
        unstated=frozenset(unstated),
        complete=True,
        publication=Publication(withdrawn, _superseded(entry, catalog), str(entry.get("aligned")).lower() == "true"),
        problems=tuple(_count_problems(raw, name, devices)),
    )


def _count_problems(raw: RawRow, name: str, devices: int | None) -> Iterator[Finding]:
    """Where the label, the run and the conditions have different numbers of devices."""
    if devices is None:
        return
    shape, run = read_label(str(raw.nested.get("row", ""))), _mapping(raw.nested, "run")
    if shape.cards not in (None, devices):
        message = (
            f"the label says {shape.cards} cards in all, and the row has {devices} devices; "
            "write the total number of devices"
        )
        yield Finding(raw.number, raw.line, name, "devices", "label", message)
    nodes, gpus = (_count(str(run.get(key, ""))) for key in ("nodes", "gpus"))
    of_run = nodes * gpus if nodes and gpus else None
    grid = None if shape.devices == shape.cards else shape.devices
    for other, where in ((of_run, "the run"), (grid, "the label's grid")):
        if other not in (None, devices):
            message = f"{devices} devices, and {where} has {other}; correct one of them"
            yield Finding(raw.number, raw.line, name, "devices", "contradiction", message)


def _metrics(entry: Mapping[str, Any]) -> tuple[dict[str, Cell], Cell | None, tuple[str, ...]]:
    metrics: dict[str, Cell] = {}
    total, withdrawn = None, []
    listed = entry.get("metrics")
    for metric in listed if isinstance(listed, list) else ():
        if not isinstance(metric, dict) or "name" not in metric:
            continue
        cell = read_number(str(metric.get("printed") or metric.get("value", "")))
        if cell is None:
            continue
        metrics[str(metric["name"])] = cell
        if metric.get("of"):
            total = read_number(str(metric["of"]))
        if metric.get("source"):
            withdrawn.append(str(metric["name"]))
    return metrics, total, tuple(withdrawn)


def _superseded(entry: Mapping[str, Any], catalog: Catalog) -> bool:
    """Whether the file has the same table at the commit that the case is published at, and this row is not of it."""
    source, case = entry.get("source"), catalog.cases.get(str(entry["case"]))
    if not isinstance(source, dict) or case is None or not isinstance(entry.get("sources"), dict):
        return False
    current = case.published["commit"]
    return source.get("commit") != current and any(
        isinstance(other, dict) and other.get("file") == source.get("file") and other.get("commit") == current
        for other in entry["sources"].values()
    )


def _mapping(entry: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = entry.get(key)
    return value if isinstance(value, dict) else {}


def _count(text: str | None) -> int | None:
    cell = read_number(text or "")
    return int(cell.value) if cell is not None and 1 <= cell.value <= 10**7 else None
