"""The types of published rows, and the functions that read them from manifests/claims and manifests/catalogue.

A published row is a benchmark result with its source, conditions and values. A claim is a row with the case that can
reproduce it; claims are in YAML files, one for each case. Any other row is only cited, and is in a CSV file of the
catalogue. `published_rows` returns all rows; it reads the catalogue only when a command needs it.

A file of the catalogue has the rows of one source, which its `# key: value` lines name. Below the header, each line
is one value of a row, and the values of one row share its number.

The JSON Schema of a claims file is generated from the types here: the docstrings of classes and fields are its
descriptions.
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
"""The name of the folder with the rows that are only cited."""
Raw = Mapping[str, Any]
"""A section of a manifest as JSON types, checked against its schema."""
Task = Literal["pretraining", "finetuning", "lora", "inference", "matmul", "other"]
"""The kind of work that a row measured."""
PrecisionLabel = Literal["fp32", "tf32", "fp16", "bf16", "amp", "fp8", "fp8-cs", "fp8-mx", "mxfp8", "fp4", "nvfp4"]
"""The precision of a cited row as the publisher calls it. A suffix such as `-cs` names the recipe of scaling."""
_SHORT_COMMIT = 8
"""The number of hexadecimal digits of a commit in a citation, which is enough to be unique in a project."""
_SOURCE_FIELD = re.compile(r"^# *(\w+): *(.*)$", re.MULTILINE)
"""A field of the source in a file of the catalogue: a line `# key: value`."""
SPEEDS = (
    "tokens_per_second_per_device",
    "mamf_bf16",
    "mamf_fp8",
    "p_core",
    "p_infer_core",
    "samples_per_second",
    "tokens_per_second",
    "output_tokens_per_second_per_device",
    "output_tokens_per_second",
    "requests_per_second",
    "latency_mean",
)
"""The metrics that can be the speed of a row, by which rows of different devices are compared.

The speed of a row is the first of these metrics that it has.
"""
_BATCH = ("batch_size", "gradient_accumulation_steps")
"""The conditions that describe the batch of a row."""
_VERSIONS = ("torch", "cuda", "driver")
"""The conditions that describe the software of a claim."""
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
"""The columns of a catalogue file that state conditions, each with the name of its condition."""
_IN_OTHER_PROPERTIES = (*_COLUMNS.values(), *_BATCH, *_VERSIONS, "model")
"""The conditions that other properties of a row show, so that `remarks` leaves them out."""


@dataclass(frozen=True)
class Workload:
    """The model and the task of a published row, in one spelling for all sources."""

    model: Name
    """The name of the model."""
    task: Task
    """The kind of work."""


@dataclass(frozen=True)
class Source:
    """The place where a row was published."""

    project: str
    """The name of the publisher's project, such as `FlagPerf`."""
    url: str
    """The address of the project."""
    file: str
    """The path of the file in the project that contains the row."""
    commit: Annotated[
        str,
        Meta(
            pattern=r"^([0-9a-f]{7,40}|[0-9]{4}-[0-9]{2}-[0-9]{2})\Z",
            description="a commit, or the day on which a page without commits was read, as in 2026-01-31",
        ),
    ]
    """The Git commit at which the file was read, in 7 to 40 hexadecimal digits; for a page without commits, the day
    on which it was read, such as 2026-01-31."""
    table: str
    """The heading of the table with the row."""


@dataclass(frozen=True)
class PublishedValue:
    """One published value of a row."""

    name: str
    """The name of the metric."""
    value: Number
    """The value in `unit`."""
    unit: str
    """The unit of the value."""
    scope: Scope | None = None
    """Whether the value of a claim is that of the job, of a node or of a device. None in the catalogue, where the
    name of the metric says whether the value is that of a device."""
    of: Number | None = None
    """The total, if the publisher printed the value as used/total."""
    printed: str | None = None
    """The value as it was printed, such as `80.52%` or `4.30`; None if it was printed as `value` is."""
    source: Source | None = None
    """The earlier version of the table with the value, if a later version no longer has it. None if the value is in
    the source of the row."""

    @property
    def digits(self) -> str:
        """The value as text, with all digits that were printed if it was printed in `unit`."""
        if self.printed is None or self.printed.endswith("%"):
            return str(self.value)
        return self.printed


def printed_number(text: str) -> Decimal | None:
    """Convert a printed number and keep all of its digits: `36.1%` is 0.361, and `0.0350` is 0.0350.

    Returns None if the text is not a finite number.
    """
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
    """An inconsistency of a published row. The row itself stays as it was printed."""

    id: Name
    """The name of the anomaly, which is unique in the row."""
    field: str
    """The metric or condition of the row that is inconsistent."""
    note: str
    """Why it is inconsistent, with the calculation."""


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """A published row: its source, its work, its device, its conditions and its values."""

    id: str
    """The id: CASE/NAME for a claim; for a row that is only cited, FILE/NUMBER with its number in the file."""
    source: Source
    """The place where the row was published."""
    file: str = ""
    """The file of the source with the row; empty if the source has only one file."""
    section: str = ""
    """The section of that file with the row; empty if the file has no sections."""
    model: str
    """The name of the model, in one spelling for all sources."""
    task: Task
    """The kind of work."""
    device_id: str | None = None
    """The id of the device model in manifests/devices; None if the publisher's name for it fits several, or none."""
    may_be: tuple[str, ...] = ()
    """The ids of the device models that the publisher's name fits, if `device_id` is None."""
    conditions: Mapping[str, Scalar]
    """The conditions by name, in the publisher's words. One that was not published is absent, or `not published`."""
    metrics: tuple[PublishedValue, ...]
    """The published values."""
    anomalies: tuple[Anomaly, ...] = ()
    """The inconsistencies of the row."""

    def metric(self, name: str) -> PublishedValue | None:
        """Find a published value by the name of its metric; None if the row does not have it."""
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
        """Return a condition that is an integer, such as `devices`; None if no integer was published."""
        number = self.conditions.get(condition)
        if not isinstance(number, int):
            return None
        return number

    def text(self, condition: str) -> str:
        """Return a condition as text, in the publisher's words; empty if it was not published."""
        value = self.conditions.get(condition, NOT_PUBLISHED)
        if value == NOT_PUBLISHED:
            return ""
        return str(value)

    @property
    def device(self) -> str:
        """The publisher's name for the device; `not published` if there is none."""
        return self.text("device_model") or NOT_PUBLISHED

    @property
    def precision_label(self) -> str | None:
        """The precision as the publisher calls it; None if it was not published."""
        return self.text("precision") or None

    @property
    def batch(self) -> str:
        """The samples of a step in the publisher's words; for a claim, in a form such as `32 / accumulated 2`."""
        texts = [self.text(name) for name in _BATCH]
        return " / accumulated ".join(text for text in texts if text)

    @property
    def software(self) -> str:
        """The software in the publisher's words; for a claim, the versions that it states."""
        software = self.text("software")
        if software:
            return software
        versions = []
        for name in _VERSIONS:
            version = self.text(name)
            if version:
                versions.append(f"{name} {version}")
        return ", ".join(versions)

    @property
    def remarks(self) -> str:
        """The conditions that no other property has: in the publisher's words; for a claim, names with values."""
        remarks = self.text("remarks")
        if remarks:
            return remarks
        named_values = []
        for name in self.conditions:
            value = self.text(name)
            if value and name not in _IN_OTHER_PROPERTIES:
                named_values.append(f"{name} {value}")
        return "; ".join(named_values)

    @property
    def citation(self) -> str:
        """The source as text: its project, file, section and commit, or the day on which a page was read."""
        version = self.source.commit[:_SHORT_COMMIT]
        if "-" in self.source.commit:
            version = f"seen {self.source.commit}"
        parts = (self.source.project, self.file or self.source.file, self.section, version)
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True)
class ClaimPrecision:
    """The precision of a row: as the publisher calls it, and as it was executed."""

    label: str
    """The precision as the publisher printed it."""
    executed: PeakPrecision
    """The precision in which matmuls were executed."""
    derivation: str
    """How it is known which precision was executed, with the calculation."""


@dataclass(frozen=True)
class ClaimRun:
    """The arguments of a run that reproduces a claim."""

    nodes: PositiveCount
    """The number of nodes."""
    gpus: PositiveCount
    """The number of devices on each node; on processors, the number of ranks."""
    preset: Preset
    """The size of the case: `reference` is the published size, `tiny` a small one for trials."""
    division: Division
    """The rules of the run. `faithful`: it executes the work that the publisher describes."""
    precision: Precision
    """The precision to execute."""
    set: Mapping[str, Any]
    """The hyper-parameters to change with `--set`: their values by name."""


@dataclass(frozen=True, kw_only=True)
class ClaimFields:
    """The fields of a row in a claims file, without its source and its values."""

    id: Annotated[str, Meta(pattern=r"^[a-z0-9.-]+/[a-z0-9.-]+\Z")]
    """The id of the claim: CASE/NAME."""
    title: str
    """The title of the claim in tables."""
    row: str
    """The row as it was printed, or those of its cells by which it is found in its table."""
    stack: Name | None
    """The stack that runs the claim; null if no stack supports its hardware."""
    no_stack: Reason | None = None
    """Why no stack runs the claim."""
    published_image: str
    """The container image that the publisher used."""
    precision: ClaimPrecision
    """The precision of the row, as the publisher calls it and as it was executed."""
    run: ClaimRun
    """The arguments of a run that reproduces the claim."""
    conditions: Mapping[str, Scalar]
    """The conditions of the row by name; `not published` if the publisher does not state a condition."""
    environment: Mapping[str, Scalar]
    """Facts about the publisher's environment that are not conditions, by name: the machine, its operating system,
    and environment variables that were set."""
    anomalies: tuple[Anomaly, ...]
    """The inconsistencies of the row."""
    aligned: bool | None = None
    """Whether the row states that its losses are aligned with the publisher's reference. They are if their mean
    relative error from the 21st step on is below 2 %. The reference losses were not published. Absent if the row does
    not state it."""


@dataclass(frozen=True, kw_only=True)
class Claim(PublishedRow, ClaimFields):
    """A published row that a case can reproduce."""

    case: str
    """The name of the case."""

    @property
    def precision_label(self) -> str | None:
        """The precision as the publisher calls it; None if it was not published."""
        if self.task == "matmul":
            # The condition `precision` of such a claim is that of the short matmul after the run, not of the row.
            return self.precision.label
        return super().precision_label


@dataclass(frozen=True)
class RowMetric:
    """One published value in a claims file."""

    name: str
    """The name of the metric."""
    value: Number
    """The value in `unit`."""
    unit: Unit
    """The unit of the value."""
    scope: Scope
    """Whether the value is that of the whole job, of one node or of one device."""
    of: Number | None = None
    """The total, if the publisher printed the value as used/total."""
    printed: Word | None = None
    """The value as it was printed, such as `80.52%`, if that differs from `value`."""
    source: str | None = None
    """The entry of `sources` with an earlier version of the table, if a later version no longer has the value."""


@dataclass(frozen=True, kw_only=True)
class ClaimRow(ClaimFields):
    """One row in a claims file."""

    source: str | None = None
    """The entry of `sources` in which the row was published; absent if the file has a single `source`."""
    metrics: Annotated[tuple[RowMetric, ...], Meta(min_length=1)]
    """The published values of the row."""


@dataclass(frozen=True, kw_only=True)
class ClaimsManifest:
    """A claims file: the published rows that one case can reproduce."""

    VERSION: ClassVar[str] = "claims/v1"

    case: Name
    """The name of the case."""
    source: Source | None = None
    """The place where all rows were published; absent if there are several `sources`."""
    sources: Mapping[Name, Source] = field(default_factory=dict)
    """The places where the rows were published, by a name to which each row refers. Only if there are several."""
    claims: Annotated[tuple[ClaimRow, ...], Meta(min_length=1)]
    """The rows."""


@dataclass(frozen=True)
class CatalogueCases:
    """The file manifests/catalogue/cases.yaml: the workload of each case, in the spelling of the catalogue's
    files."""

    VERSION: ClassVar[str] = "catalogue-cases/v1"

    cases: Mapping[Name, Workload]
    """The workloads by the name of the case."""


@dataclass(frozen=True, kw_only=True)
class CatalogueSource:
    """The source of a catalogue file, from its lines that begin with #: files at a commit, or pages without one."""

    project: Word
    """The project on GitHub, OWNER/NAME."""
    commit: Annotated[str, Meta(pattern=r"^[0-9a-f]{40}\Z")] | None = None
    """The Git commit at which the source was read; absent for pages."""
    page: Annotated[str, Meta(pattern=r"^https://\S+\Z")] | None = None
    """The address below which the pages are, whose own are in the column `file`; absent for files."""
    seen: Annotated[str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")] | None = None
    """The day on which the pages were read, such as 2026-01-31."""
    path: Word
    """The path of the file or folder with the rows, or what the pages are."""
    license: Word
    """The licence that the project states in its repository."""

    def __post_init__(self) -> None:
        """Raise ValueError unless the source has a commit, or a page and the day on which it was read."""
        is_file = self.commit is not None and self.page is None and self.seen is None
        is_page = self.commit is None and self.page is not None and self.seen is not None
        if not is_file and not is_page:
            raise ValueError("it needs a commit, or a page and the day on which it was seen")

    def to_source(self) -> Source:
        """Convert it to the form in which rows have their source."""
        return Source(
            project=self.project,
            url=self.page or f"https://github.com/{self.project}",
            file=self.path,
            commit=self.commit or self.seen or "",
            table="",
        )


@dataclass(frozen=True, kw_only=True)
class CatalogueLine:
    """One line of a catalogue file, which has one value of a row. The fields are the columns of the file.

    A cell is empty if it was not published.
    """

    row: PositiveCount = 1
    """The number of the row in its file."""
    model: Name
    """The name of the model, in one spelling for all sources."""
    task: Task
    """The kind of work."""
    device: Word
    """The publisher's name for the device."""
    device_id: Name | None = None
    """The id of the device model in manifests/devices; empty if the publisher's name fits several, or none."""
    precision: PrecisionLabel | None = None
    """The precision as the publisher calls it."""
    devices: PositiveCount | None = None
    """The number of devices of the whole job."""
    nodes: PositiveCount | None = None
    """The number of nodes."""
    batch: str = ""
    """The samples of a step, in the publisher's words."""
    sequence: str = ""
    """The sequence length: a number, or the publisher's words."""
    parallelism: str = ""
    """How the ranks share the model, in the publisher's words."""
    software: str = ""
    """The software, in the publisher's words."""
    file: str = ""
    """The file of the source with the row; empty if the source has only one file."""
    section: str = ""
    """The section of that file with the row."""
    conditions: str = ""
    """All other conditions, in the publisher's words."""
    metric: Identifier
    """The name of the metric."""
    value: Annotated[str, Meta(pattern=r"^[0-9]+(\.[0-9]+)?\Z")]
    """The value in `unit`, with all digits that were printed."""
    unit: Literal["tokens/s", "samples/s", "requests/s", "TFLOP/s", "%", "GiB", "GB", "B", "s", "min", "h"]
    """The unit of the value."""


COLUMNS = tuple(field.name for field in fields(CatalogueLine))
"""The columns of a file of the catalogue."""


def build_claim(claim: Raw, file: Raw, workload: Workload, devices: Mapping[str, DeviceModel]) -> Claim:
    """Build a claim from a row of a claims file.

    Args:
        claim: the row, in the form of ClaimRow.
        file: the whole file, in the form of ClaimsManifest.
        workload: the model and the task of the case.
        devices: the device models of the catalog, by id.
    """
    sources = file.get("sources", {})
    # All fields are given, in their order, since `flagbench list --json` prints them.
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
    """Return all claims of the catalog, followed by all rows that are only cited.

    The files of cited rows are read by the first call. Raises ManifestError (DATA) with every problem of these files.
    """
    return *catalog.claims.values(), *read_catalogue(catalog.root, catalog.devices)


def read_catalogue(root: Path, devices: Mapping[str, DeviceModel]) -> tuple[PublishedRow, ...]:
    """Read the rows of all files of the catalogue.

    Args:
        root: the folder of the manifests.
        devices: the device models of the catalog, by id.

    Raises ManifestError (DATA) with every problem of every file.
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
    """Read the rows of one file of the catalogue.

    Args:
        path: the file.
        title: the name of the file in messages.
        devices: the device models of the catalog, by id.

    Raises ManifestError with every problem of the file.
    """
    text = _read_catalogue_text(path, title)
    source_fields = dict(_SOURCE_FIELD.findall(text))
    try:
        source = _convert(source_fields, CatalogueSource)
    except msgspec.ValidationError as error:
        raise ManifestError([Problem(title, 1, (), f"in the lines that begin with #: {error}")]) from None
    lines = parse_lines(text, title, devices)
    # Many lines have the same name of a device, so each name is looked up once.
    ambiguous_names = {line.device for line in lines if line.device_id is None}
    fitting_ids = {name: fitting_devices(name, devices.values()) for name in ambiguous_names}
    rows = []
    for number, row_lines in groupby(lines, lambda line: line.row):
        rows.append(_build_cited_row(f"{path.stem}/{number}", source, list(row_lines), fitting_ids))
    return rows


def _read_catalogue_text(path: Path, title: str) -> str:
    """Read a file of the catalogue as text, which errors call `title`. Raises ManifestError."""
    try:
        text = read_text(path)
    except OSError as error:
        raise ManifestError([Problem(title, 1, (), f"cannot be read: {reason(error)}")]) from None
    except ValueError as error:
        raise ManifestError([Problem(title, 1, (), f"it is not UTF-8 text: {error}")]) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ManifestError([Problem(title, line, (), "it contains a NUL character")])
    return text


def parse_lines(text: str, title: str, devices: Mapping[str, DeviceModel]) -> list[CatalogueLine]:
    """Parse the lines below the header of a file of the catalogue.

    Args:
        text: the whole file.
        title: the name of the file in messages.
        devices: the device models of the catalog, by id.

    Raises ManifestError with every problem, by line.
    """
    text_lines = text.splitlines()
    comment_lines = 0
    while comment_lines < len(text_lines) and text_lines[comment_lines].startswith("#"):
        comment_lines += 1
    reader = csv.DictReader(text_lines[comment_lines:], strict=True)
    fault = _describe_header_fault(set(reader.fieldnames or ()))
    if fault is not None:
        message = f"{fault}; the columns are {', '.join(COLUMNS)}"
        raise ManifestError([Problem(title, comment_lines + 1, (), message)])
    problems: list[Problem] = []
    lines: list[CatalogueLine] = []
    try:
        for cells in reader:
            try:
                lines.append(_to_line(cells, devices))
            except msgspec.ValidationError as error:
                message = str(error).replace("$.", "")  # msgspec writes the field `row` as `$.row`
                problems.append(Problem(title, comment_lines + reader.line_num, (), message))
    except csv.Error as error:
        problems.append(Problem(title, comment_lines + reader.line_num, (), str(error)))
    if problems:
        raise ManifestError(problems)
    return lines


def _describe_header_fault(header: set[str]) -> str | None:
    """Describe the fault of a header in words; None if it has only known columns."""
    if not header:
        return "there is no header"
    unknown = sorted(header - set(COLUMNS))
    if unknown:
        return f"unknown column {', '.join(unknown)}"
    return None


def _to_line(cells: Mapping[str, Any], devices: Mapping[str, DeviceModel]) -> CatalogueLine:
    """Convert the cells of a line, by column, to a CatalogueLine. Raises msgspec.ValidationError."""
    # For the csv module, surplus cells are in the column None, and a missing cell is None.
    if None in cells or None in cells.values():
        raise msgspec.ValidationError("has not as many cells as the header")
    line: CatalogueLine = _convert(cells, CatalogueLine)
    if line.device_id is not None and line.device_id not in devices:
        raise msgspec.ValidationError(f"there is no device '{line.device_id}'")
    return line


def _build_cited_row(
    id: str, source: CatalogueSource, lines: Sequence[CatalogueLine], fitting_ids: Mapping[str, tuple[str, ...]]
) -> PublishedRow:
    """Build a row that is only cited, from its lines in a file of the catalogue.

    Args:
        id: the id of the row, FILE/NUMBER.
        source: the source of the file.
        lines: the lines of the row, one for each value; they differ only in metric, value and unit.
        fitting_ids: the ids of the devices that a publisher's name fits, by name, for lines without a `device_id`.
    """
    first_line = lines[0]
    conditions: dict[str, Scalar] = {}
    for column, condition in _COLUMNS.items():
        cell = getattr(first_line, column)
        if cell not in (None, ""):
            conditions[condition] = cell
    if first_line.sequence.isdecimal():
        conditions["sequence_length"] = int(first_line.sequence)
    may_be: tuple[str, ...] = ()
    if first_line.device_id is None:
        may_be = fitting_ids[first_line.device]
    return PublishedRow(
        id=id,
        source=source.to_source(),
        file=first_line.file,
        section=first_line.section,
        model=first_line.model,
        task=first_line.task,
        device_id=first_line.device_id,
        may_be=may_be,
        conditions=conditions,
        metrics=tuple(_to_value(line) for line in lines),
    )


def _to_value(line: CatalogueLine) -> PublishedValue:
    """Convert a line to its value. `printed` is set only if the text differs from the number as Python prints it."""
    number: Number = float(line.value)
    if line.value.isdecimal():
        number = int(line.value)
    printed = None
    if str(number) != line.value:
        printed = line.value
    return PublishedValue(line.metric, number, line.unit, printed=printed)


def _convert(cells: Mapping[str, Any], kind: type) -> Any:
    """Convert cells of text, by column, to an instance of `kind`. An empty cell is an absent field."""
    return msgspec.convert({key: text for key, text in cells.items() if text != ""}, kind, strict=False)
