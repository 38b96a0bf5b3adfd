"""The catalogue: published rows that are only cited, one CSV file per source in manifests/catalogue.

`# key: value` lines name the source; below the header each line is one value of a published row, and the values of
one row share its number. Only what asks for these files reads them.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from flagbench.files import read_text
from flagbench.manifests.documents import ManifestError, Problem
from flagbench.manifests.load import read_manifest
from flagbench.manifests.model import Catalog, Count, DeviceModel, Identifier, Name, Word

FOLDER = "catalogue"
Task = Literal["pretraining", "finetuning", "lora", "inference", "matmul"]


@dataclass(frozen=True)
class Source:
    """Where the rows of a file were read."""

    project: Word
    commit: Annotated[str, Meta(pattern=r"^[0-9a-f]{40}\Z")]
    path: Word
    license: Word
    """As the project states it in its repository."""
    attribution: str = ""
    note: str = ""


@dataclass(frozen=True)
class CatalogueValue:
    """One value of a published row. What is not published is None or empty."""

    row: Count
    """The published row's number in its file."""
    model: Name
    """In one spelling for all sources."""
    task: Task
    device: Word
    """As the publisher calls it."""
    metric: Identifier
    value: Annotated[str, Meta(pattern=r"^[0-9]+(\.[0-9]+)?\Z")]
    """As printed, without separators of thousands."""
    unit: Literal["tokens/s", "samples/s", "TFLOP/s", "%", "GiB", "GB", "B", "s", "min", "h"]
    precision: (
        Literal["fp32", "tf32", "fp16", "bf16", "amp", "fp8", "fp8-cs", "fp8-mx", "mxfp8", "fp4", "nvfp4"] | None
    ) = None
    device_id: Name | None = None
    """Of manifests/devices; None where the publisher's word fits several, or none."""
    devices: Count | None = None
    nodes: Count | None = None
    batch: str = ""
    sequence: str = ""
    """Tokens of a sequence, where it is one number."""
    parallelism: str = ""
    software: str = ""
    file: str = ""
    """Where the source has several."""
    section: str = ""
    conditions: str = ""
    line: Count = 1


COLUMNS = tuple(field.name for field in fields(CatalogueValue) if field.name != "line")


@dataclass(frozen=True)
class CatalogueFile:
    """The values of a source, by line."""

    name: str
    source: Source
    values: tuple[CatalogueValue, ...]


@dataclass(frozen=True)
class CaseOfModel:
    """What the catalogue calls a case's workload."""

    model: Name
    task: Task


@dataclass(frozen=True)
class CatalogueCases:
    """manifests/catalogue/cases.yaml."""

    cases: Mapping[Name, CaseOfModel]
    VERSION = "catalogue-cases/v1"


def peak_of(device: DeviceModel | None, precision: str | None) -> float | None:
    """The published peak of a device in the precision of a row, FLOP/s; None where either is not published."""
    kind = {"mxfp8": "fp8", "nvfp4": "fp4"}.get(precision or "", (precision or "").split("-")[0])
    peak = None if device is None else device.peaks.get(kind)
    return None if peak is None else float(peak.flops)


def is_catalogue(text: str) -> bool:
    """Whether a CSV text has the catalogue's columns."""
    header = next((line for line in text.splitlines() if not line.startswith("#")), "")
    return {"metric", "value", "unit"} <= set(header.split(","))


def parse_catalogue(text: str, shown: str) -> tuple[dict[str, str], list[CatalogueValue]]:
    """The `# key: value` lines and the values of a file. Raises ManifestError with every problem, by line."""
    lines = text.removeprefix("\ufeff").splitlines()
    comments = [re.match(r"# *(\w+): *(.*)", line) for line in lines if line.startswith("#")]
    head = {match[1]: match[2].strip() for match in comments if match}
    offset = len(comments)
    reader = csv.DictReader(lines[offset:], strict=True)
    problems: list[Problem] = []
    unknown = set(reader.fieldnames or ()) - set(COLUMNS)
    if unknown or not reader.fieldnames:
        what = f"unknown column {', '.join(sorted(map(repr, unknown)))}; the columns are {', '.join(COLUMNS)}"
        raise ManifestError([Problem(shown, offset + 1, (), what if unknown else "there is no header")])
    values = []
    try:
        for cells in reader:
            line = offset + reader.line_num
            if None in cells or None in cells.values():
                problems.append(Problem(shown, line, (), "has not as many cells as the header"))
                continue
            try:
                values.append(_convert({**cells, "line": line}, CatalogueValue))
            except msgspec.ValidationError as error:
                problems.append(Problem(shown, line, (), str(error).replace("$.", "")))
    except csv.Error as error:
        problems.append(Problem(shown, offset + reader.line_num, (), str(error)))
    if problems:
        raise ManifestError(problems)
    return head, values


def read_catalogue(root: Path) -> tuple[CatalogueFile, ...]:
    """Every file of the catalogue in a folder of manifests. Raises ManifestError with every problem."""
    found: list[CatalogueFile] = []
    problems: list[Problem] = []
    for path in sorted((root / FOLDER).glob("*.csv")):
        shown = f"{root.name}/{FOLDER}/{path.name}"
        try:
            head, values = parse_catalogue(read_text(path), shown)
            found.append(CatalogueFile(path.stem, _convert(head, Source), tuple(values)))
        except ManifestError as error:
            problems += error.problems
        except msgspec.ValidationError as error:
            problems.append(Problem(shown, 1, (), f"{error} in the lines of comment".replace("$.", "")))
    if problems:
        raise ManifestError(problems)
    return tuple(found)


def read_cases(root: Path) -> Mapping[str, CaseOfModel]:
    """The model and task of each case, as the catalogue calls them."""
    path = root / FOLDER / "cases.yaml"
    if not path.exists():
        return {}
    document = read_manifest(path, f"{root.name}/{FOLDER}/{path.name}", CatalogueCases)
    if document.problems:
        raise ManifestError(document.problems)
    return msgspec.convert(document.data["cases"], dict[str, CaseOfModel])


def check_catalogue(files: Iterable[CatalogueFile], catalog: Catalog) -> None:
    """What types cannot say: that cases and devices exist. Raises ManifestError with every problem."""
    shown = f"{catalog.root.name}/{FOLDER}"
    cases = sorted(read_cases(catalog.root).keys() - catalog.cases.keys())
    problems = [Problem(f"{shown}/cases.yaml", 1, ("cases", name), "no such case") for name in cases]
    problems += [
        Problem(f"{shown}/{file.name}.csv", value.line, (), f"there is no device '{value.device_id}'")
        for file in files
        for value in file.values
        if value.device_id is not None and value.device_id not in catalog.devices
    ]
    if problems:
        raise ManifestError(problems)


def _convert(cells: Mapping[str, Any], kind: type) -> Any:
    """Text cells as a type; an empty one is not given."""
    return msgspec.convert({key: text for key, text in cells.items() if text != ""}, kind, strict=False)
