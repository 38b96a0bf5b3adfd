"""The catalogue: published rows that are only cited, one CSV file per source in manifests/catalogue.

`# key: value` lines name the source; below the header each line is one value of a published row, and the values of
one row share its number. Only what asks for these files reads them.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from flagbench.manifests.device import DeviceModel
from flagbench.manifests.documents import ManifestError, Problem
from flagbench.manifests.fields import Count, Identifier, Name, Word
from flagbench.manifests.model import Catalog
from flagbench.manifests.rows import Task
from flagbench.system.files import read_text, reason
from flagbench_core.exit_codes import ExitCode

FOLDER = "catalogue"
RowPrecision = Literal["fp32", "tf32", "fp16", "bf16", "amp", "fp8", "fp8-cs", "fp8-mx", "mxfp8", "fp4", "nvfp4"]


class Printed(NamedTuple):
    """A value as printed, without separators of thousands, and its unit."""

    value: str
    unit: str


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """A published row. What is not published is None or empty."""

    row: Count = 1
    """Its number in its file."""
    model: Name
    """In one spelling for all sources."""
    task: Task
    device: Word
    """As the publisher calls it."""
    device_id: Name | None = None
    """Of manifests/devices; None where the publisher's word fits several, or none."""
    precision: RowPrecision | None = None
    devices: Count | None = None
    nodes: Count | None = None
    batch: str = ""
    sequence: str = ""
    """Tokens of a sequence, where it is one number."""
    parallelism: str = ""
    software: str = ""
    file: str = ""
    """Where its source has several."""
    section: str = ""
    conditions: str = ""
    metrics: Mapping[str, Printed] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Line(PublishedRow):
    metric: Identifier
    value: Annotated[str, Meta(pattern=r"^[0-9]+(\.[0-9]+)?\Z")]
    unit: Literal["tokens/s", "samples/s", "TFLOP/s", "%", "GiB", "GB", "B", "s", "min", "h"]


COLUMNS = tuple(field.name for field in fields(_Line) if field.name != "metrics")
_OF_ROW = tuple(field.name for field in fields(PublishedRow))


@dataclass(frozen=True)
class Source:
    """A file of the catalogue: where its rows were read, and the rows."""

    project: Word
    commit: Annotated[str, Meta(pattern=r"^[0-9a-f]{40}\Z")]
    path: Word
    license: Word
    """As the project states it in its repository."""
    name: str = ""
    """Of the file."""
    rows: tuple[PublishedRow, ...] = ()


def parse_rows(text: str, shown: str, devices: Mapping[str, DeviceModel]) -> tuple[PublishedRow, ...]:
    """The rows of a file. Raises ManifestError with every problem, by line."""
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    reader = csv.DictReader(lines[start:], strict=True)
    header = set(reader.fieldnames or ())
    if not header & set(COLUMNS):
        what = f"there is no header; its columns are {', '.join(COLUMNS)}"
        raise ManifestError([Problem(shown, start + 1, (), what)])
    unknown = sorted(header - set(COLUMNS))
    if unknown:
        what = f"unknown column {', '.join(unknown)}; the columns are {', '.join(COLUMNS)}"
        raise ManifestError([Problem(shown, start + 1, (), what)])
    problems, found = [], []
    try:
        for cells in reader:
            line = start + reader.line_num
            try:
                if None in cells or None in cells.values():
                    raise msgspec.ValidationError("has not as many cells as the header")
                value = _convert(cells, _Line)
                if value.device_id not in (None, *devices):
                    raise msgspec.ValidationError(f"there is no device '{value.device_id}'")
                found.append(value)
            except msgspec.ValidationError as error:
                problems.append(Problem(shown, line, (), str(error).replace("$.", "")))
    except csv.Error as error:
        problems.append(Problem(shown, start + reader.line_num, (), str(error)))
    if problems:
        raise ManifestError(problems)
    return tuple(_row(list(values)) for _, values in groupby(found, lambda value: value.row))


def read_catalogue(catalog: Catalog) -> tuple[Source, ...]:
    """Every file of the catalogue. Raises ManifestError (data) with every problem."""
    found: list[Source] = []
    problems: list[Problem] = []
    for path in sorted((catalog.root / FOLDER).glob("*.csv")):
        shown = f"{catalog.root.name}/{FOLDER}/{path.name}"
        try:
            text = read_text(path)
        except OSError as error:
            problems.append(Problem(shown, 1, (), f"cannot be read: {reason(error)}"))
            continue
        except ValueError as error:
            problems.append(Problem(shown, 1, (), f"it is not UTF-8 text: {error}"))
            continue
        if "\0" in text:
            line = text.count("\n", 0, text.index("\0")) + 1
            problems.append(Problem(shown, line, (), "it contains a NUL character"))
            continue
        try:
            source = _convert(dict(re.findall(r"^# *(\w+): *(.*)$", text, re.MULTILINE)), Source)
            found.append(replace(source, name=path.stem, rows=parse_rows(text, shown, catalog.devices)))
        except ManifestError as error:
            problems += error.problems
        except msgspec.ValidationError as error:
            problems.append(Problem(shown, 1, (), f"in the lines that begin with #: {error}"))
    if problems:
        raise ManifestError(problems, code=ExitCode.DATA)
    return tuple(found)


def _row(values: list[_Line]) -> PublishedRow:
    first = values[0]
    shared: dict[str, Any] = {name: getattr(first, name) for name in _OF_ROW}
    shared["metrics"] = {value.metric: Printed(value.value, value.unit) for value in values}
    return PublishedRow(**shared)


def _convert(cells: Mapping[str, Any], kind: type) -> Any:
    """Text cells as a type; an empty one is not given."""
    return msgspec.convert({key: text for key, text in cells.items() if text != ""}, kind, strict=False)
