"""The loss of each training step, from a record or from a published file."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from flagbench.errors import FlagbenchError
from flagbench.records.model import Record
from flagbench.records.read import LARGEST
from flagbench.terminal import brief, visible
from flagbench_core.exit_codes import ExitCode

FORMATS = "CSV with a header line that names the columns step and loss, or JSON lines with these fields"
COLUMNS = ("step", "loss")
COMPLETE = 24_000
"""Steps from the first on whose losses are in every record."""


class CurveError(FlagbenchError):
    """A record or a file that does not hold a usable loss curve."""

    def __init__(self, message: str, *, remedy: str = f"give the losses as {FORMATS}") -> None:
        super().__init__(visible(message), remedy=remedy, code=ExitCode.DATA)


class Curve(Struct, frozen=True):
    """Losses by step. Steps are counted from 1, as publishers count them."""

    name: str
    """The record's id, or the name of the file."""
    losses: Mapping[int, float | None]
    """In the order of the steps; None where a loss is not finite."""
    cut: int = 0
    """Steps at the end of the run whose losses the record does not have."""
    record: Record | None = None


def of_record(record: Record) -> Curve:
    """The curve of a record.

    Raises:
        CurveError: the run did not train, or the record, of an earlier version, has only some of its losses.
    """
    quality, name = record.quality, record.record_id
    if quality is not None and (losses := quality.losses) is not None and losses.values:
        if not min(losses.steps, COMPLETE) <= len(losses.values) <= losses.steps:
            raise CurveError(
                f"record {name} has {len(losses.values):,} losses of {losses.steps:,} steps",
                remedy="give the record as the run printed it",
            )
        numbered = dict(enumerate(losses.values, losses.first_step + 1))
        return Curve(name, numbered, losses.steps - len(numbered), record)
    points = () if quality is None else quality.loss_curve
    steps = 0 if record.work is None else record.work.steps
    if not points or quality is None or "infer" in (record.config or {}):
        raise CurveError(
            f"record {name} has no losses of training steps",
            remedy="name the record of a run that trained; `flagbench results ls` shows the stored ones",
        )
    if [step for step, _ in points] != list(range(steps)):
        raise CurveError(
            f"record {name} has only {len(points):,} of {steps:,} losses: an earlier version of flagbench wrote it",
            remedy="run the case again with this version, whose records have the loss of every step",
        )
    first = (quality.resumed or {}).get("step", 0)
    if isinstance(first, bool) or not isinstance(first, int) or first < 0:
        raise CurveError(f"record {name} resumed from step {brief(str(first), 40)!r}, which is no step")
    return Curve(name, {first + 1 + step: loss for step, loss in points}, 0, record)


def is_record(content: bytes) -> bool:
    """Whether the bytes of a file look like a record: one JSON object, which is not a line of a curve."""
    start = content.removeprefix(b"\xef\xbb\xbf").lstrip()
    line, _, others = start.partition(b"\n")
    if not start.startswith(b"{"):
        return False
    found = _json_object(line)
    return found is None or not (others.strip() or _has_columns(found))


def of_file(content: bytes, name: str) -> Curve:
    """The curve in the bytes of a file; `name` is what errors call it.

    Raises:
        CurveError: it is empty, not UTF-8, neither CSV nor JSON lines, a step is not a positive integer or does not
            follow the one before it, or a loss is not a number.
    """
    try:
        text = content.decode("utf-8-sig")  # spreadsheets write a byte order mark
    except UnicodeDecodeError as error:
        raise CurveError(f"{name} is not UTF-8 text: byte {error.start} is 0x{content[error.start]:02x}") from None
    lines = re.split("\r\n|\n|\r", text)
    if not text.strip():
        raise CurveError(f"{name} is empty")
    rows = _json_rows(lines, name) if text.lstrip().startswith("{") else _csv_rows(lines, name)
    losses: dict[int, float | None] = {}
    last = 0
    for number, step_text, loss_text in rows:
        where = f"line {number} of {name}"
        step = _step(step_text, where)
        if step in losses:
            raise CurveError(
                f"{where} has step {step} again",
                remedy="keep one loss for each step; the log of a resumed run may contain steps twice",
            )
        if step < last:
            raise CurveError(f"{where} has step {step} after step {last}", remedy="sort the lines by step")
        losses[step] = _loss(loss_text, where)
        last = step
    if not losses:
        raise CurveError(f"{name} has no losses")
    return Curve(name, losses)


def _json_object(line: str | bytes) -> dict[str, Any] | None:
    """The JSON object on a line; None for anything else, and if a field is there twice."""
    try:
        found = json.loads(line, object_pairs_hook=_fields)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field is there twice")
    return fields


def _has_columns(fields: dict[str, Any]) -> bool:
    return all(column in fields for column in COLUMNS)


Rows = Iterator[tuple[int, Any, Any]]
"""Line number, step and loss."""


def _json_rows(lines: list[str], name: str) -> Rows:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        found = _json_object(line)
        if found is None or not _has_columns(found):
            raise CurveError(f"line {number} of {name} is not a JSON object with one field step and one field loss")
        yield number, found["step"], found["loss"]


def _csv_rows(lines: list[str], name: str) -> Rows:
    reader = csv.reader(lines, skipinitialspace=True)
    columns: list[str] | None = None
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            if columns is None:
                columns = [cell.lower() for cell in cells]
                if any(columns.count(column) != 1 for column in COLUMNS):
                    raise CurveError(f"line {reader.line_num} of {name} does not name the columns step and loss")
                continue
            if len(cells) != len(columns):
                raise CurveError(
                    f"line {reader.line_num} of {name} has {len(cells)} cells under {len(columns)} columns"
                )
            step, loss = (cells[columns.index(column)] for column in COLUMNS)
            yield reader.line_num, step, loss
    except csv.Error as error:
        raise CurveError(f"line {reader.line_num} of {name} is not valid CSV: {error}") from None


def _step(value: Any, where: str) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 10**15:
        raise CurveError(f"{where}: the step {brief(str(value), 40)!r} is not an integer")
    if value < 1:
        raise CurveError(
            f"{where}: step {value}; steps are counted from 1",
            remedy="add 1 to every step if the file counts them from 0",
        )
    return value


def _loss(value: Any, where: str) -> float | None:
    if value is None:  # as JSON has what is not finite
        return None
    try:
        # None of these is a number: true in JSON, and digits with underscores or of other scripts in Python.
        text = str(value)
        loss = float(value) if not isinstance(value, bool) and "_" not in text and text.isascii() else None
    except (TypeError, ValueError, OverflowError):
        loss = None
    if loss is None or LARGEST < abs(loss) < math.inf:
        raise CurveError(f"{where}: the loss {brief(str(value), 40)!r} is not a number")
    return loss if math.isfinite(loss) else None
