"""Published rows that a case runs, the claims, as typed data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from flagbench.manifests.fields import (
    Count,
    Division,
    Name,
    Number,
    PeakPrecision,
    Precision,
    Preset,
    Reason,
    Scalar,
    Scope,
    Unit,
    Word,
)

Raw = Mapping[str, Any]
Task = Literal["pretraining", "finetuning", "lora", "inference", "matmul", "other"]


@dataclass(frozen=True)
class Workload:
    """What a published row is of, in one spelling for all sources."""

    model: Name
    task: Task


@dataclass(frozen=True)
class CatalogueCases:
    """What the files of the catalogue call the workload of each case."""

    VERSION: ClassVar[str] = "catalogue-cases/v1"

    cases: Mapping[Name, Workload]


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
    """One published value."""

    name: str
    value: Number
    unit: Unit
    scope: Scope
    of: Number | None = None
    """The total where a cell was printed as used/total."""
    printed: Word | None = None
    """The cell as it was printed, where that is not `value`: `80.52%`."""


@dataclass(frozen=True)
class RowMetric(PublishedValue):
    """One published value in a claims file."""

    source: str | None = None
    """An entry of `sources`: an earlier version of the table, whose value a later one took out."""


@dataclass(frozen=True)
class ClaimMetric(PublishedValue):
    """One published value of a claim."""

    source: Source | None = None
    """An earlier version of the table, whose value a later one took out; None for the claim's own source."""


@dataclass(frozen=True)
class Anomaly:
    """An oddity of a published row, with its derivation; the row itself is left as it was printed."""

    id: Name
    field: str
    note: str


@dataclass(frozen=True)
class ClaimPrecision:
    """The precision as the row has it, what was executed, and how that is known."""

    label: str
    executed: PeakPrecision
    derivation: str


@dataclass(frozen=True)
class ClaimRun:
    """How to run what a claim says: the arguments of the image."""

    nodes: Count
    gpus: Count
    preset: Preset
    division: Division
    precision: Precision
    set: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """One published row: its conditions and its metrics."""

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
class ClaimRow(PublishedRow):
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


@dataclass(frozen=True, kw_only=True)
class Claim(PublishedRow):
    """One published row of the catalog."""

    case: str
    source: Source
    metrics: tuple[ClaimMetric, ...]
    path: Path

    def metric(self, name: str) -> ClaimMetric | None:
        """A published value by the metric's name, or None if the row has none."""
        return next((m for m in self.metrics if m.name == name), None)


def build_claim(claim: Raw, file: Raw, path: Path) -> Claim:
    """A claim of a file, with what all of them share: the case, and the source where there is only one."""
    sources = file.get("sources", {})
    # Every field is given, in its order: `flagbench list --json` prints them.
    absent = dict.fromkeys(field.name for field in fields(ClaimMetric))
    metrics = [{**absent, **metric, "source": sources.get(metric.get("source"))} for metric in claim["metrics"]]
    source = file.get("source") or sources[claim["source"]]
    values = {**claim, "case": file["case"], "metrics": metrics, "source": source, "path": path}
    return msgspec.convert(values, Claim)
