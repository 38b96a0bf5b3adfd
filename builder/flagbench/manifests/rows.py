"""Published rows as typed data, and the readers of manifests/claims and manifests/catalogue.

A published row is a benchmark result with its source, conditions and values. A claim is a row with the case that can
reproduce it; any other row is only cited, and is in a CSV file of the catalogue.

A file of the catalogue has the rows of one source, which its `# key: value` lines name. Below the header, each line
is one value of a row, and the values of one row share its number. `published_rows` reads these files only when a
command needs them.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from flagbench.manifests.device import DeviceModel
from flagbench.manifests.device_names import fitting_devices
from flagbench.manifests.documents import ManifestError, Problem
from flagbench.manifests.fields import (
    NOT_PUBLISHED,
    Division,
    Identifier,
    Name,
    Number,
    PeakPrecision,
    PositiveCount,
    Precision,
    Preset,
    Reason,
    Scalar,
    Scope,
    Unit,
    Word,
)
from flagbench.system.files import read_text, reason
from flagbench_core.exit_codes import ExitCode

if TYPE_CHECKING:
    from flagbench.manifests.model import Catalog

CATALOGUE = "catalogue"
"""The folder of the rows that are only cited."""
Raw = Mapping[str, Any]
"""A section of a manifest as JSON types, checked against its schema."""
Task = Literal["pretraining", "finetuning", "lora", "inference", "matmul", "other"]
PrecisionLabel = Literal["fp32", "tf32", "fp16", "bf16", "amp", "fp8", "fp8-cs", "fp8-mx", "mxfp8", "fp4", "nvfp4"]
_SHORT_COMMIT = 8
"""Hexadecimal digits of a commit in a citation: enough to be unique in a project."""
SPEEDS = (
    *("tokens_per_second_per_device", "mamf_bf16", "mamf_fp8", "p_core", "p_infer_core"),
    *("samples_per_second", "tokens_per_second"),
    *("output_tokens_per_second_per_device", "output_tokens_per_second"),
)
"""The metrics that can be a row's speed. It is the first of these that the row has."""
_BATCH = ("batch_size", "gradient_accumulation_steps")
"""The conditions that a row's batch is made of."""
_VERSIONS = ("torch", "cuda", "driver")
"""The conditions that a claim's software is made of."""
_COLUMNS = {
    "device": "device_model",
    "precision": "precision",
    "devices": "devices",
    "nodes": "nodes",
    "batch": "batch_size",
    "sequence": "sequence_length",
    "parallelism": "layout",
    "software": "software",
    "conditions": "remarks",
}
"""The condition that each of these columns of the catalogue states, by column."""
_SHOWN_APART = (*_COLUMNS.values(), *_BATCH, *_VERSIONS, "model")
"""Conditions that are shown by themselves, and therefore are not in the `remarks` of a claim."""


@dataclass(frozen=True)
class Workload:
    """The model and the task of a published row, in one spelling for all sources."""

    model: Name
    task: Task


@dataclass(frozen=True)
class Source:
    """Where a claim was published."""

    project: str
    url: str
    file: str
    commit: Annotated[
        str,
        Meta(
            pattern=r"^([0-9a-f]{7,40}|[0-9]{4}-[0-9]{2}-[0-9]{2})\Z",
            description="a commit, or the day on which a page without commits was read, as in 2026-01-31",
        ),
    ]
    table: str


@dataclass(frozen=True)
class PublishedValue:
    """One published value of a row."""

    name: str
    value: Number
    unit: str
    scope: Scope | None = None
    """Whether a claim's value is of the job, a node or a device. None in the catalogue, where the metric's name says
    whether the value is of a device."""
    of: Number | None = None
    """The total, if a cell was printed as used/total."""
    printed: str | None = None
    """The cell as it was printed, such as `80.52%` or `4.30`; None if it was printed as `value`."""
    source: Source | None = None
    """The earlier version of the table that has the value, if a later version removed it; None: the row's source."""

    @property
    def digits(self) -> str:
        """The value in its unit, with every printed digit if it was printed in that unit."""
        if self.printed is None or self.printed.endswith("%"):
            return str(self.value)
        return self.printed


def printed_number(text: str) -> Decimal | None:
    """Read a printed number with every digit: `36.1%` as 0.361 and `0.0350` as 0.0350; None if it is not finite."""
    try:
        number = Decimal(text.removesuffix("%").strip())
    except InvalidOperation:
        return None
    if not number.is_finite():
        return None
    if text.endswith("%"):
        return number.scaleb(-2)
    return number


@dataclass(frozen=True)
class Anomaly:
    """An oddity of a published row, with its derivation; the row itself is left as it was printed."""

    id: Name
    field: str
    note: str


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """A published row: its source, the work and the device, its conditions and its values."""

    id: str
    """The id of a claim, CASE/NAME; for a row that is only cited, the name of its file and its number in the file."""
    source: Source
    file: str = ""
    """The file of the source that has the row; empty if the source names only one file."""
    section: str = ""
    """The part of that file that has the row; empty if it is not divided."""
    model: str
    """The name of the model, in one spelling for all sources."""
    task: Task
    device_id: str | None = None
    """The id of the device model in manifests/devices; None if the publisher's name for it fits several, or none."""
    may_be: tuple[str, ...] = ()
    """The ids of the device models that the publisher's name fits, if `device_id` is None."""
    conditions: Mapping[str, Scalar]
    """The conditions by name, in the publisher's words. One that was not published is absent, or `not published`."""
    metrics: tuple[PublishedValue, ...]
    anomalies: tuple[Anomaly, ...] = ()

    def metric(self, name: str) -> PublishedValue | None:
        """Find a published value by the metric's name; None if the row has none."""
        for metric in self.metrics:
            if metric.name == name:
                return metric
        return None

    @property
    def speed(self) -> PublishedValue | None:
        """The value by which rows of different devices are compared; None if the row has none of SPEEDS."""
        for name in SPEEDS:
            speed = self.metric(name)
            if speed is not None:
                return speed
        return None

    def count(self, condition: str) -> int | None:
        """Read a condition that is an integer, such as `devices`; None if it is not published, or is given in
        words."""
        number = self.conditions.get(condition)
        if not isinstance(number, int):
            return None
        return number

    def text(self, condition: str) -> str:
        """Read a condition in the publisher's words; empty if it is not published."""
        words = self.conditions.get(condition, NOT_PUBLISHED)
        if words == NOT_PUBLISHED:
            return ""
        return str(words)

    @property
    def device(self) -> str:
        """The device as the publisher calls it."""
        return self.text("device_model") or NOT_PUBLISHED

    @property
    def precision_label(self) -> str | None:
        """The precision as the publisher calls it."""
        return self.text("precision") or None

    @property
    def batch(self) -> str:
        """The samples of a step in the publisher's words, or in a claim such as `32 / accumulated 2`."""
        texts = [self.text(name) for name in _BATCH]
        return " / accumulated ".join(text for text in texts if text)

    @property
    def software(self) -> str:
        """The software in the publisher's words, or the versions that a claim states."""
        versions = [f"{name} {self.text(name)}" for name in _VERSIONS if self.text(name)]
        return self.text("software") or ", ".join(versions)

    @property
    def remarks(self) -> str:
        """All other conditions: in the publisher's words, or in a claim each after its name."""
        remarks = self.text("remarks")
        if remarks:
            return remarks
        others = []
        for name in self.conditions:
            text = self.text(name)
            if text and name not in _SHOWN_APART:
                others.append(f"{name} {text}")
        return "; ".join(others)

    @property
    def citation(self) -> str:
        """The source in words: its project, file, section and commit."""
        commit = self.source.commit
        if re.fullmatch("[0-9a-f]+", commit):  # Otherwise it is the day on which a page was read.
            commit = commit[:_SHORT_COMMIT]
        parts = (self.source.project, self.file or self.source.file, self.section, commit)
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True)
class ClaimPrecision:
    """The precision as the row has it, what was executed, and how that is known."""

    label: str
    executed: PeakPrecision
    derivation: str


@dataclass(frozen=True)
class ClaimRun:
    """How to run what a claim says: the arguments of the image."""

    nodes: PositiveCount
    gpus: PositiveCount
    preset: Preset
    division: Division
    precision: Precision
    set: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ClaimFields:
    """What a claims file states about a row, without its source and its values."""

    id: Annotated[str, Meta(pattern=r"^[a-z0-9.-]+/[a-z0-9.-]+\Z")]
    title: str
    row: str
    stack: Name | None
    """The stack that runs it; null if its hardware has no stack; `no_stack` then says why."""
    no_stack: Reason | None = None
    published_image: str
    precision: ClaimPrecision
    run: ClaimRun
    conditions: Mapping[str, Scalar]
    """By name; `not published` where the publisher is silent."""
    environment: Mapping[str, Scalar]
    anomalies: tuple[Anomaly, ...]
    aligned: bool | None = None
    """Whether the row says that its losses are aligned: from the 21st step on, their mean relative error against the
    publisher's reference is below 2 %. The reference losses were not published. Absent where the row does not say."""


@dataclass(frozen=True, kw_only=True)
class Claim(PublishedRow, ClaimFields):
    """A published row with the case that runs it."""

    case: str

    @property
    def precision_label(self) -> str | None:
        """The precision as the publisher calls it."""
        if self.task == "matmul":  # the condition `precision` is that of the run's short product
            return self.precision.label
        return super().precision_label


@dataclass(frozen=True)
class RowMetric:
    """One published value in a claims file."""

    name: str
    value: Number
    unit: Unit
    scope: Scope
    of: Number | None = None
    """The total where a cell was printed as used/total."""
    printed: Word | None = None
    """The cell as it was printed, where that is not `value`: `80.52%`."""
    source: str | None = None
    """An entry of `sources`: an earlier version of the table, whose value a later one took out."""


@dataclass(frozen=True, kw_only=True)
class ClaimRow(ClaimFields):
    """One row in a claims file."""

    source: str | None = None
    """An entry of `sources`."""
    metrics: Annotated[tuple[RowMetric, ...], Meta(min_length=1)]


@dataclass(frozen=True, kw_only=True)
class ClaimsManifest:
    """The published rows of one case."""

    VERSION: ClassVar[str] = "claims/v1"

    case: Name
    source: Source | None = None
    sources: Mapping[Name, Source] = field(default_factory=dict)
    """Where the rows stand, by name; a claim names its own. In place of `source`, for more than one."""
    claims: Annotated[tuple[ClaimRow, ...], Meta(min_length=1)]


@dataclass(frozen=True)
class CatalogueCases:
    """The workload of each case, in the words of the catalogue's files: manifests/catalogue/cases.yaml."""

    VERSION: ClassVar[str] = "catalogue-cases/v1"

    cases: Mapping[Name, Workload]


@dataclass(frozen=True)
class CatalogueSource:
    """The source of a catalogue file, from its lines that begin with #."""

    project: Word
    """The project on GitHub, OWNER/NAME."""
    commit: Annotated[str, Meta(pattern=r"^[0-9a-f]{40}\Z")]
    path: Word
    license: Word
    """The licence that the project states in its repository."""


@dataclass(frozen=True, kw_only=True)
class CatalogueLine:
    """One line of a catalogue file, which has one value of a row. A cell is empty if it was not published."""

    row: PositiveCount = 1
    """The number of the row in its file."""
    model: Name
    task: Task
    device: Word
    device_id: Name | None = None
    precision: PrecisionLabel | None = None
    devices: PositiveCount | None = None
    nodes: PositiveCount | None = None
    batch: str = ""
    sequence: str = ""
    parallelism: str = ""
    software: str = ""
    file: str = ""
    section: str = ""
    conditions: str = ""
    metric: Identifier
    value: Annotated[str, Meta(pattern=r"^[0-9]+(\.[0-9]+)?\Z")]
    unit: Literal["tokens/s", "samples/s", "TFLOP/s", "%", "GiB", "GB", "B", "s", "min", "h"]


COLUMNS = tuple(field.name for field in fields(CatalogueLine))
"""The columns of a file of the catalogue."""


def build_claim(claim: Raw, file: Raw, workload: Workload, devices: Mapping[str, DeviceModel]) -> Claim:
    """Build a claim from a row of a claims file.

    Args:
        claim: the row.
        file: the whole file, which states the case, and the source or the sources of its rows.
        workload: the model and the task of the case.
        devices: the device models of the catalog, by id.
    """
    sources = file.get("sources", {})
    # Every field is present, in its order: `flagbench list --json` prints them.
    empty_value = dict.fromkeys(field.name for field in fields(PublishedValue))
    metrics = []
    for metric in claim["metrics"]:
        metrics.append({**empty_value, **metric, "source": sources.get(metric.get("source"))})
    raw: dict[str, Any] = {
        **claim,
        "case": file["case"],
        "metrics": metrics,
        "source": file.get("source") or sources[claim["source"]],
        "model": workload.model,
        "task": workload.task,
    }
    device_name = str(claim["conditions"].get("device_model", NOT_PUBLISHED))
    ids = [device.id for device in devices.values() if device.name == device_name]
    if ids:
        raw["device_id"] = ids[0]
    else:
        raw["may_be"] = fitting_devices(device_name, devices.values())
    return msgspec.convert(raw, Claim)


@lru_cache(maxsize=1)
def published_rows(catalog: Catalog) -> tuple[PublishedRow, ...]:
    """Return every claim of the catalog, and then every row that is only cited, whose files are read now.

    Raises ManifestError (data) with every problem of these files.
    """
    return *catalog.claims.values(), *read_catalogue(catalog.root, catalog.devices)


def read_catalogue(root: Path, devices: Mapping[str, DeviceModel]) -> tuple[PublishedRow, ...]:
    """Read the rows of every file of the catalogue; `root` is the folder of manifests.

    Raises ManifestError (data) with every problem of every file.
    """
    rows: list[PublishedRow] = []
    problems: list[Problem] = []
    for path in sorted((root / CATALOGUE).glob("*.csv")):
        try:
            rows += read_source(path, f"{root.name}/{CATALOGUE}/{path.name}", devices)
        except ManifestError as error:
            problems += error.problems
    if problems:
        raise ManifestError(problems, code=ExitCode.DATA)
    return tuple(rows)


def read_source(path: Path, title: str, devices: Mapping[str, DeviceModel]) -> list[PublishedRow]:
    """Read the rows of a file of the catalogue; `title` is its name in messages.

    Raises ManifestError with every problem of the file.
    """
    try:
        text = read_text(path)
    except OSError as error:
        raise ManifestError([Problem(title, 1, (), f"cannot be read: {reason(error)}")]) from None
    except ValueError as error:
        raise ManifestError([Problem(title, 1, (), f"it is not UTF-8 text: {error}")]) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ManifestError([Problem(title, line, (), "it contains a NUL character")])
    try:
        source = _convert(dict(re.findall(r"^# *(\w+): *(.*)$", text, re.MULTILINE)), CatalogueSource)
    except msgspec.ValidationError as error:
        raise ManifestError([Problem(title, 1, (), f"in the lines that begin with #: {error}")]) from None
    lines = parse_lines(text, title, devices)
    device_names = {line.device for line in lines if line.device_id is None}
    fitting = {name: fitting_devices(name, devices.values()) for name in device_names}
    rows = []
    for number, row_lines in groupby(lines, lambda line: line.row):
        rows.append(_build_cited_row(f"{path.stem}/{number}", source, list(row_lines), fitting))
    return rows


def parse_lines(text: str, title: str, devices: Mapping[str, DeviceModel]) -> list[CatalogueLine]:
    """Parse the lines of a file of the catalogue. Raises ManifestError with every problem, by line."""
    text_lines = text.splitlines()
    start = 0
    while start < len(text_lines) and text_lines[start].startswith("#"):
        start += 1
    reader = csv.DictReader(text_lines[start:], strict=True)
    fault = _header_fault(set(reader.fieldnames or ()))
    if fault is not None:
        raise ManifestError([Problem(title, start + 1, (), f"{fault}; the columns are {', '.join(COLUMNS)}")])
    problems: list[Problem] = []
    lines: list[CatalogueLine] = []
    try:
        for cells in reader:
            try:
                lines.append(_to_line(cells, devices))
            except msgspec.ValidationError as error:
                problems.append(Problem(title, start + reader.line_num, (), str(error).replace("$.", "")))
    except csv.Error as error:
        problems.append(Problem(title, start + reader.line_num, (), str(error)))
    if problems:
        raise ManifestError(problems)
    return lines


def _header_fault(header: set[str]) -> str | None:
    """Say what is wrong with the columns of a header; None if nothing is."""
    if not header:
        return "there is no header"
    unknown = sorted(header - set(COLUMNS))
    if unknown:
        return f"unknown column {', '.join(unknown)}"
    return None


def _to_line(cells: Mapping[str, Any], devices: Mapping[str, DeviceModel]) -> CatalogueLine:
    """Convert the cells of a line, by column, to the line's type. Raises msgspec.ValidationError."""
    # The csv module uses None as the column of surplus cells, and as the cell of a missing one.
    if None in cells or None in cells.values():
        raise msgspec.ValidationError("has not as many cells as the header")
    line: CatalogueLine = _convert(cells, CatalogueLine)
    if line.device_id is not None and line.device_id not in devices:
        raise msgspec.ValidationError(f"there is no device '{line.device_id}'")
    return line


def _build_cited_row(
    id: str, source: CatalogueSource, lines: Sequence[CatalogueLine], fitting: Mapping[str, tuple[str, ...]]
) -> PublishedRow:
    """Build a row that is only cited.

    Args:
        id: the name of its file and its number in it.
        source: the source of the file.
        lines: the lines of the row, one for each value; they differ only in metric, value and unit.
        fitting: the ids of the devices that a publisher's name fits, by name, for lines without a `device_id`.
    """
    first = lines[0]
    conditions: dict[str, Scalar] = {}
    for column, condition in _COLUMNS.items():
        cell = getattr(first, column)
        if cell not in (None, ""):
            conditions[condition] = cell
    if first.sequence.isdecimal():
        conditions["sequence_length"] = int(first.sequence)
    may_be: tuple[str, ...] = ()
    if first.device_id is None:
        may_be = fitting[first.device]
    return PublishedRow(
        id=id,
        source=Source(source.project, f"https://github.com/{source.project}", source.path, source.commit, ""),
        file=first.file,
        section=first.section,
        model=first.model,
        task=first.task,
        device_id=first.device_id,
        may_be=may_be,
        conditions=conditions,
        metrics=tuple(_to_value(line) for line in lines),
    )


def _to_value(line: CatalogueLine) -> PublishedValue:
    """Convert a line to its value. The printed text is kept only if it is not the number's own."""
    number: Number = float(line.value)
    if line.value.isdecimal():
        number = int(line.value)
    printed = None
    if str(number) != line.value:
        printed = line.value
    return PublishedValue(line.metric, number, line.unit, printed=printed)


def _convert(cells: Mapping[str, Any], kind: type) -> Any:
    """Convert cells of text, by column, to a type; an empty cell counts as absent."""
    return msgspec.convert({key: text for key, text in cells.items() if text != ""}, kind, strict=False)
