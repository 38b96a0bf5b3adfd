"""Cases as typed data, and the catalog of all manifests.

A case is one workload: a model, a dataset, a task and its metrics. Its JSON Schema is generated from the types here;
those of claims, stacks and devices are in `rows`, `stack` and `device`. The bounds of a value are in the type of its
field; rules between fields or files are in `checks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypedDict

from msgspec import Meta

from flagbench.manifests.device import DeviceModel
from flagbench.manifests.fields import (
    Axis,
    ConfigPath,
    Environment,
    Identifier,
    Manifest,
    Name,
    Number,
    PositiveCount,
    PositiveNumber,
    Precision,
    Preset,
    Reason,
    Scalar,
    Scope,
    SourceText,
    Unit,
    Word,
    keys,
)
from flagbench.manifests.limits import AcceptanceLimit
from flagbench.manifests.rows import Claim, Workload
from flagbench.manifests.stack import Stack
from flagbench_core.flops import FORMULAS, Formula


@dataclass(frozen=True)
class Published:
    """The publisher's code."""

    project: str
    path: str
    commit: str


@dataclass(frozen=True)
class Engine:
    """One way in which ranks compute together, and what it supports."""

    layout: tuple[Axis, ...]
    """The axes along which it can have more than one rank."""
    divides: Annotated[Mapping[str, Annotated[tuple[ConfigPath, ...], Meta(min_length=1)]], keys(Axis)] = field(
        default_factory=dict
    )
    """Values of a preset that the size of an axis must divide, by their path in it."""
    max_nodes: PositiveCount | None = None
    """Any number where absent."""
    resume: bool | None = None
    """Whether it writes checkpoints; as the case where absent."""
    does_not_run: Mapping[str, str] = field(default_factory=dict)
    """Stacks on which it does not run, each with the reason."""


class _Setting(TypedDict):
    path: Annotated[str, Meta(pattern=r"^[a-z_0-9]+(\.[a-z_0-9]+)+\Z")]
    type: Literal["integer", "number", "string", "boolean", "shape"]


class Setting(_Setting, total=False):
    """A hyper-parameter that `--set` changes, and the values it may have."""

    minimum: Number
    exclusive_minimum: Number
    maximum: Number
    exclusive_maximum: Number
    choices: tuple[Any, ...]
    default: Scalar
    """What a run without the setting does; then no preset has its path, and no configuration the default."""


_Else = TypedDict("_Else", {"else": "Derivation"}, total=False)


class DerivationForm(_Else, total=False):
    """A derivation that is more than a path: one of `value`, `one_of`, `text`, `by` and the operations."""

    value: Scalar
    one_of: Annotated[tuple[Scalar, ...], Meta(min_length=2)]
    """What only a run knows, which is one of these."""
    text: Word
    """A format in the style of printf, of the values in `of`."""
    of: Annotated[tuple[Derivation, ...], Meta(min_length=1)]
    by: ConfigPath
    values: Annotated[Mapping[str, Derivation], Meta(min_length=1)]
    """By the value at `by` as JSON writes it, strings without quotes; `else` for others."""
    product: tuple[Derivation, Derivation]
    difference: tuple[Derivation, Derivation]
    """The first less the second."""
    quotient: tuple[Derivation, Derivation]
    """The first by the second, which divides it."""


Derivation = ConfigPath | DerivationForm
"""How a value follows from the resolved configuration: by its path, or by a form."""


@dataclass(frozen=True)
class MetricSpec:
    """A metric of a case: its unit, its direction and the conditions its value depends on."""

    name: str
    unit: Unit
    scope: Scope
    better: Literal["higher", "lower"]
    depends_on: tuple[str, ...]
    """Groups of conditions; in a Case the names of the conditions, in the manifest's order."""
    held_by: str | None = None
    """The measured metric a published value of this name is compared with, where it is another one."""


@dataclass(frozen=True)
class OperatorDifference:
    """How many more of an operator our step has than the publisher's."""

    step: int = 0
    layer: int = 0
    """In each layer."""


@dataclass(frozen=True)
class StepDifference:
    """What of a quirk a step shows beside the publisher's (tests/reenact)."""

    operators: Mapping[str, OperatorDifference]
    share: Annotated[int, Meta(ge=0, le=1)] | Annotated[float, Meta(ge=0, le=1)]
    """Of the bytes that a step moves at the sizes of `python -m tests.reenact --small`."""
    saved_share: Annotated[int, Meta(ge=-1)] | Annotated[float, Meta(ge=-1)] | None = None
    """The share of the bytes kept for the backward pass, signed."""


@dataclass(frozen=True)
class TimeDifference:
    """How much longer a published step is here because of a quirk, calculated."""

    share: Annotated[int, Meta(ge=0, le=1)] | Annotated[float, Meta(ge=0, le=1)]
    formula: str


@dataclass(frozen=True)
class Quirk:
    """A surprise in the publisher's code, and whether a comparable run repeats it."""

    id: Name
    decision: Literal["kept", "corrected"]
    publisher: str
    here: str
    difference: StepDifference | None = None
    time: TimeDifference | None = None


@dataclass(frozen=True)
class PublishedFormula:
    """A publisher's utilisation: `metric` for each device x `flops_per_unit` / a peak (FLOP/s): that of the device
    where there is none."""

    id: str
    metric: str
    flops_per_unit: PositiveNumber
    source: str
    peak: PositiveNumber | None = None
    peaks: Annotated[Mapping[str, PositiveNumber], keys(Precision)] = field(default_factory=dict)
    """Other peaks that the publisher divides by, by the executed precision."""

    def peak_of(self, precision: str, device_peak: Number | None) -> Number | None:
        """Find the peak that the publisher divides by for a run that executed this precision, FLOP/s.

        Args:
            device_peak: the peak of the device, which is taken if the publisher has none of its own.
        """
        if precision in self.peaks:
            return self.peaks[precision]
        return self.peak or device_peak


@dataclass(frozen=True)
class Flops:
    """How FLOPs are counted."""

    formula: str
    """A formula's id in flagbench_core.flops."""
    source: str
    published: PublishedFormula | None = None
    """How the publisher makes a utilisation of a throughput, where it publishes one."""


@dataclass(frozen=True)
class Range:
    """The values that a condition can have which no row publishes; the tokens of a sample are proportional to it."""

    low: PositiveNumber
    high: PositiveNumber
    source: SourceText


@dataclass(frozen=True)
class MeasuredMemory:
    """What a run of the reference preset took of the memory of each of its devices, where that was measured."""

    gib: PositiveNumber
    """In use at the peak: as the claim has it, or the record to one decimal place."""
    precision: Precision
    """That was executed."""
    device: Word
    """As records and claims name it."""
    source: Annotated[str, Meta(pattern=r"^(docs/measured/[a-z0-9.-]+\.json|[a-z0-9.-]+/[a-z0-9.-]+)\Z")]
    """A record in the checkout, or the id of a claim; a test compares the two."""
    layout: Annotated[Mapping[Axis, PositiveCount], keys(Axis, "dp", "tp", "pp")] | None = None
    """Ranks along each axis; absent where every device has the whole model."""


@dataclass(frozen=True, kw_only=True)
class CaseManifest:
    """One workload: a model, a dataset, a task and its metrics."""

    VERSION: ClassVar[str] = "case/v1"

    name: Name
    family: Name | None = None
    """The case whose folder has the code of this one, a model of other sizes; its own where absent."""
    title: str
    task: str
    kind: Literal["train", "infer", "measure"] = "train"
    """Whether the case trains, runs a model forward or measures the device; the section of its presets that says how
    long has that name, too."""
    unit: Literal["samples", "tokens"]
    gate: str
    further_gates: tuple[str, ...] = ()
    """What decides where the other side has no `gate`: the first of them that it has."""
    published: Published
    precisions: Annotated[tuple[Precision, ...], Meta(min_length=1)]
    default_precision: Precision
    default_seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    resume: bool
    engines: Annotated[Mapping[str, Engine], Meta(min_length=1)]
    """How ranks compute together. Where there are several, presets.reference.engine.name names one."""
    checks: Annotated[tuple[Identifier, ...], Meta(min_length=1)]
    """The checks that the record of a run must contain, each where it applies, for the run to be a success."""
    presets: Annotated[Mapping[str, Mapping[str, Any]], keys(Preset, "reference", "tiny")]
    absent: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the presets that configurations of earlier versions lack, with the values that these mean."""
    settable: Mapping[str, Setting]
    condition_groups: Mapping[str, Annotated[tuple[str, ...], Meta(min_length=1)]]
    conditions: Mapping[str, Derivation] = field(default_factory=dict)
    """How a condition follows from the resolved configuration, by its name; left out if only a run knows it."""
    counts: Annotated[Mapping[str, Derivation], keys(Literal["samples_per_step", "tokens_per_sample"])] = field(
        default_factory=dict
    )
    """How the work of a run follows from its configuration and its steps, where it does: samples that a replica
    counts in a step, its batches full; tokens of a sample with its padding, without a factor of `ranges`."""
    ranges: Mapping[str, Range] = field(default_factory=dict)
    """Between which values conditions lie that rows leave out and the tokens of a sample are proportional to."""
    metrics: Annotated[tuple[MetricSpec, ...], Meta(min_length=1)]
    flops: Flops | str
    """How FLOPs are counted, or `none`: then no rule on FLOPs and no utilisation applies."""
    quirks: tuple[Quirk, ...]
    environment: Environment = field(default_factory=dict)
    """What the publisher's scripts export that changes a measurement; on a device, ranks get it unless it is set."""
    does_not_run: Mapping[Name, Reason]
    """Stacks that cannot run this case, each with the reason; every other stack runs it."""
    imports: tuple[Annotated[str, Meta(pattern=r"^[a-z0-9_]+\Z")], ...] = ()
    """Modules that a run of this case imports beside those of every case."""
    needs: tuple[Annotated[str, Meta(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*\Z")], ...] = ()
    """Packages that stacks install only for a case that names them: those under `compiled`, `optional` and
    `other_python`; a stack that leaves one out does without."""
    shapes: Annotated[tuple[str, ...], Meta(min_length=1)] = ("model", "sequence_length")
    """Conditions without which two speeds measure different work, so that their ratio means nothing."""
    memory: tuple[MeasuredMemory, ...] = ()
    """What was measured of each precision and layout; a case that takes less where there is less has none."""


@dataclass(frozen=True, kw_only=True)
class Case(CaseManifest, Manifest):
    """A case of the catalog."""

    HOST_ALONE: ClassVar[frozenset[str]] = frozenset(
        (
            *("metrics", "conditions", "counts", "published", "title", "task", "schema", "further_gates", "memory"),
            "absent",
        )
    )
    raw: Mapping[str, Any]
    """The whole manifest as JSON types."""
    path: Path
    workload: Workload
    """The model and the task of the case as manifests/catalogue/cases.yaml names them. For a case that is not in that
    file, the model has the case's name."""
    stacks: Mapping[str, Stack] = field(default_factory=dict, repr=False, compare=False)
    """All stacks of the catalog, by name."""

    def held_to(self, metrics: Iterable[Any]) -> Case:
        """Return the case with the gate that these metrics have, which are those of a claim or of a baseline.

        The gate is the metric that decides a verdict. If they lack it, the first of `further_gates` that they have
        replaces it.
        """
        names = {metric.name for metric in metrics}
        for gate in (self.gate, *self.further_gates):
            if gate in names:
                return replace(self, gate=gate)
        return self

    def metric(self, name: str) -> MetricSpec | None:
        """Find the specification of a metric by its name; None if the case has no such metric."""
        for metric in self.metrics:
            if metric.name == name:
                return metric
        return None

    @property
    def formula(self) -> str | None:
        """The id of the formula of its FLOPs; None if it counts none."""
        if isinstance(self.flops, str):
            return None
        return self.flops.formula

    @property
    def count_flops(self) -> Formula | None:
        """The function that counts the FLOPs; None if the case counts none."""
        if self.formula is None:
            return None
        return FORMULAS[self.formula]

    @property
    def published_formula(self) -> PublishedFormula | None:
        """How the publisher computes a utilisation from a throughput; None if it publishes none."""
        if isinstance(self.flops, str):
            return None
        return self.flops.published

    @property
    def software_conditions(self) -> tuple[str, ...]:
        """Conditions that qualify a verdict (`software differs`) instead of forbidding it."""
        return self.condition_groups.get("software", ())

    @property
    def work_conditions(self) -> tuple[str, ...]:
        """Conditions that say which work was computed."""
        return self.condition_groups.get("work", ())


@dataclass(frozen=True, eq=False)
class Catalog:
    """Everything in manifests/, loaded and checked. It is hashed by identity, to be the key of a cache."""

    root: Path
    """The folder of the manifests."""
    cases: Mapping[str, Case]
    """The cases by name."""
    devices: Mapping[str, DeviceModel]
    """The device models by id."""
    stacks: Mapping[str, Stack]
    """The stacks by name."""
    claims: Mapping[str, Claim]
    """The published rows that a case runs, by id."""
    limits: Mapping[str, AcceptanceLimit]
    """The limits of an acceptance by id."""
