"""The types of case manifests (manifests/cases/*.yaml), and the catalog of all manifests.

A case is one workload: a model, a dataset, a task and its metrics. The types of the other manifests are in `rows`
(claims), `stack`, `device` and `limits`. `load` reads the files into these types.

The JSON Schema of a case is generated from this file: types become its rules, and the docstrings of classes and
fields its descriptions. Rules that involve several fields or files are in `checks`.
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
from flagbench.manifests.limits import AcceptanceLimit, FleetLimits, Share
from flagbench.manifests.rows import Claim, Workload
from flagbench.manifests.stack import Stack
from flagbench_core.flops import FORMULAS, Formula

_ConfigPaths = Annotated[tuple[ConfigPath, ...], Meta(min_length=1)]


@dataclass(frozen=True)
class Published:
    """The code with which the publisher of the benchmark runs the case."""

    project: str
    """The name of the publisher's project, such as `FlagPerf`."""
    path: str
    """The path of the benchmark in the repository of the project."""
    commit: str
    """The Git commit that the case was read at."""


@dataclass(frozen=True)
class Engine:
    """A way in which the ranks of a run compute together, and its limits."""

    layout: tuple[Axis, ...]
    """The axes along which there may be more than one rank: `dp` data-parallel replicas, `tp` tensor-parallel parts,
    `pp` pipeline stages."""
    divides: Annotated[Mapping[str, _ConfigPaths], keys(Axis)] = field(default_factory=dict)
    """The settings that the number of ranks along an axis must divide: their paths in the configuration, by axis."""
    max_nodes: PositiveCount | None = None
    """The largest number of nodes; unlimited if absent."""
    resume: bool | None = None
    """Whether the engine writes checkpoints and resumes from them; if absent, `resume` of the case applies."""
    does_not_run: Mapping[str, str] = field(default_factory=dict)
    """The stacks on which the engine does not run: their names, and the reason of each."""


class _Setting(TypedDict):
    """The fields that every setting has; those of `Setting` are optional."""

    path: Annotated[str, Meta(pattern=r"^[a-z_0-9]+(\.[a-z_0-9]+)+\Z")]
    """The place of the setting in the configuration, such as `train.batch_size`."""
    type: Literal["integer", "number", "string", "boolean", "shape"]
    """The type of its value. A `shape` is the three sizes of a matmul, such as 8192x8192x8192."""


class Setting(_Setting, total=False):
    """A hyper-parameter that `--set` changes: `path` is its place in the configuration, `type` the type of its value.

    A `shape` is the three sizes of a matmul, such as 8192x8192x8192.
    """

    minimum: Number
    """The smallest value that is allowed."""
    exclusive_minimum: Number
    """The value must be larger than this number."""
    maximum: Number
    """The largest value that is allowed."""
    exclusive_maximum: Number
    """The value must be smaller than this number."""
    choices: tuple[Any, ...]
    """The only values that are allowed."""
    default: Scalar
    """The value that describes a run without the setting. A setting with a default is in no preset, and a
    configuration has it only if it was set to another value."""


_Else = TypedDict("_Else", {"else": "Derivation"}, total=False)
"""The field `else` of DerivationForm, which a class cannot have because its name is a keyword."""


class DerivationForm(_Else, total=False):
    """A rule that computes a value from the resolved configuration, if the value is not simply that at a path.

    It has one of these: `value`; `one_of`; `text` with `of`; `by` with `values` and `else`; or one of the operations
    `product`, `difference` and `quotient`.
    """

    value: Scalar
    """A constant value."""
    one_of: Annotated[tuple[Scalar, ...], Meta(min_length=2)]
    """All values that a run can have, if only the run itself knows which of them it has."""
    text: Word
    """A format in the style of printf, which is filled with the values of `of`."""
    of: Annotated[tuple[Derivation, ...], Meta(min_length=1)]
    """The rules whose values are put into `text`, in order."""
    by: ConfigPath
    """The path of the setting whose value chooses a rule from `values`."""
    values: Annotated[Mapping[str, Derivation], Meta(min_length=1)]
    """The rule for each value of the setting at `by`. Values are written as in JSON, but strings without quotes.
    `else` is the rule for all other values."""
    product: tuple[Derivation, Derivation]
    """Two rules whose values are multiplied."""
    difference: tuple[Derivation, Derivation]
    """Two rules: the value of the second is subtracted from that of the first."""
    quotient: tuple[Derivation, Derivation]
    """Two rules: the value of the first is divided by that of the second, without remainder."""


Derivation = ConfigPath | DerivationForm
"""How a value follows from the resolved configuration: its path, or a rule that computes it."""


@dataclass(frozen=True)
class MetricSpec:
    """A metric of a case, and the conditions that its value depends on."""

    name: str
    """The name of the metric, such as `p_core`."""
    unit: Unit
    """The unit of its values."""
    scope: Scope
    """Whether its values are those of the whole job, of a node or of a device."""
    better: Literal["higher", "lower"]
    """Whether a higher or a lower value is better."""
    depends_on: tuple[str, ...]
    """The groups of conditions that the value depends on. Two values are compared only if these conditions are equal
    or were not published. In a loaded Case, the names of the conditions themselves, in the order of the manifest."""
    held_by: str | None = None
    """The name of the measured metric that a published value of this metric is compared with, if that is another one.
    For example, a published `p_core` is compared with `p_core_host`, which uses the publisher's clock."""


@dataclass(frozen=True)
class OperatorDifference:
    """How many more times a run executes an operator than the publisher's code; negative if fewer."""

    step: int = 0
    """The difference in each step, apart from its layers."""
    layer: int = 0
    """The difference in each layer of a step."""


@dataclass(frozen=True)
class StepDifference:
    """The effect of a quirk on a step, compared with a step of the publisher's code (python -m tests.reenact)."""

    operators: Mapping[str, OperatorDifference]
    """The operators whose number differs, by name, such as `aten.detach.default`."""
    share: Share
    """The bytes that these operators move, as a share of all bytes that a step moves, at the sizes of `python -m
    tests.reenact --small`."""
    saved_share: Annotated[int, Meta(ge=-1)] | Annotated[float, Meta(ge=-1)] | None = None
    """The difference of the bytes that are kept for the backward pass, as a share of these bytes; negative if fewer
    are kept."""


@dataclass(frozen=True)
class TimeDifference:
    """How much the time of a step differs because of a quirk, calculated for the published size."""

    share: Share
    """The largest difference as a share of the time of a step."""
    formula: str
    """The calculation, in words."""


@dataclass(frozen=True)
class Quirk:
    """An unexpected behaviour of the publisher's code, and whether runs of the case repeat it."""

    id: Name
    """The name of the quirk, which is unique in the case."""
    decision: Literal["kept", "corrected"]
    """`kept` if runs repeat it, because it affects the work or the optimisation; `corrected` if it affects only how
    results are counted."""
    publisher: str
    """What the publisher's code does."""
    here: str
    """What a run of the case does."""
    difference: StepDifference | None = None
    """The operators in which a step differs because of the quirk; absent if there are none."""
    time: TimeDifference | None = None
    """The difference in the time of a step, if a step differs."""


@dataclass(frozen=True)
class PublishedFormula:
    """The formula by which the publisher computes a utilisation from a throughput.

    The utilisation is `metric` per device x `flops_per_unit` / a peak. The peak is that in `peaks` for the executed
    precision, otherwise `peak`, otherwise the peak of the device.
    """

    id: str
    """The name of the formula and its version."""
    metric: str
    """The name of the metric that is the throughput, in samples/s or tokens/s."""
    flops_per_unit: PositiveNumber
    """The FLOPs of one sample or token, as the publisher counts them."""
    source: str
    """Where the formula is published, or how it was inferred."""
    peak: PositiveNumber | None = None
    """The peak that the publisher divides by for every device, in FLOP/s."""
    peaks: Annotated[Mapping[str, PositiveNumber], keys(Precision)] = field(default_factory=dict)
    """The peaks that the publisher divides by, in FLOP/s, by the precision that the run executed."""

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
    """How the FLOPs of a case are counted."""

    formula: str
    """The id of the formula in flagbench_core.flops."""
    source: str
    """What the formula counts, and how it was verified."""
    published: PublishedFormula | None = None
    """The formula by which the publisher computes a utilisation; absent if the publisher does not publish one."""


@dataclass(frozen=True)
class Range:
    """The range of a condition that published rows do not state. The tokens of a sample are proportional to it."""

    low: PositiveNumber
    """The lowest value that the condition can have."""
    high: PositiveNumber
    """The highest value that the condition can have."""
    source: SourceText
    """Where these values come from."""


@dataclass(frozen=True)
class MeasuredMemory:
    """The memory of each device that a run of the reference preset used, as a record or a published row states it."""

    gib: PositiveNumber
    """The memory in use at the peak in GiB: as published, or the value in the record rounded to one decimal place."""
    precision: Precision
    """The precision that the run executed."""
    device: Word
    """The name of the device model, in the spelling of records and claims."""
    source: Annotated[str, Meta(pattern=r"^(docs/measured/[a-z0-9.-]+\.json|[a-z0-9.-]+/[a-z0-9.-]+)\Z")]
    """The path of a record in this repository, or the id of a claim. A test compares `gib` with it."""
    layout: Annotated[Mapping[Axis, PositiveCount], keys(Axis, "dp", "tp", "pp")] | None = None
    """The number of ranks along each axis; absent if every device holds the whole model."""


@dataclass(frozen=True, kw_only=True)
class CaseManifest:
    """The manifest of a case, which is one workload: a model, a dataset, a task and its metrics."""

    VERSION: ClassVar[str] = "case/v1"

    name: Name
    """The name of the case, which is also the name of its file."""
    family: Name | None = None
    """The folder with the code of the case, if it is that of several cases, which are the same workload with models
    of other sizes: the name of one of them, or of the family. If absent, the case has code of its own."""
    title: str
    """The title of the case in tables: its model, dataset and task."""
    task: str
    """The kind of task, such as `text-classification`."""
    kind: Literal["train", "infer", "measure"] = "train"
    """Whether the case trains a model, runs it forward, or measures the device without a model. The section of its
    presets that sets the length of a run has the same name."""
    unit: Literal["samples", "tokens"]
    """The unit in which the case counts its work."""
    gate: str
    """The metric that decides a verdict."""
    further_gates: tuple[str, ...] = ()
    """Metrics that replace `gate` if the published row or the baseline does not have it: the first one that it
    has."""
    published: Published
    """The publisher's code of the case."""
    precisions: Annotated[tuple[Precision, ...], Meta(min_length=1)]
    """The precisions in which the case can be run."""
    default_precision: Precision
    """The precision of a run that does not choose one. Processors that lack this precision use fp32 instead."""
    default_seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    """The random seed of a run that does not choose one; 0 if absent."""
    resume: bool
    """Whether the case writes checkpoints and resumes from them."""
    engines: Annotated[Mapping[str, Engine], Meta(min_length=1)]
    """The engines that can run the case, by name. If there are several, the preset's setting `engine.name` chooses
    one."""
    checks: Annotated[tuple[Identifier, ...], Meta(min_length=1)]
    """The sanity checks that a run must pass to be valid, as far as they apply to it."""
    presets: Annotated[Mapping[str, Mapping[str, Any]], keys(Preset, "reference", "tiny")]
    """The settings of each size of the case: `reference` is the published size, and `tiny` has only the settings that
    differ in a small size for trials."""
    absent: Mapping[str, Any] = field(default_factory=dict)
    """The settings that earlier versions did not have, as a part of a preset. A configuration of an earlier version,
    which lacks such a setting, means the value given here."""
    settable: Mapping[str, Setting]
    """The hyper-parameters that `--set NAME=VALUE` may change, by name."""
    condition_groups: Mapping[str, Annotated[tuple[str, ...], Meta(min_length=1)]]
    """The names of the conditions in each group, by the name of the group. A condition is a fact about a run or a
    published row on which metrics depend."""
    conditions: Mapping[str, Derivation] = field(default_factory=dict)
    """How the value of a condition follows from the resolved configuration, by name. A condition that only a run
    knows is left out."""
    counts: Annotated[Mapping[str, Derivation], keys(Literal["samples_per_step", "tokens_per_sample"])] = field(
        default_factory=dict
    )
    """How the work of a run follows from its configuration. `samples_per_step` is the number of samples of a replica
    in a step with full batches. `tokens_per_sample` is the number of tokens of a sample with padding, to be
    multiplied by the condition in `ranges`, if there is one."""
    ranges: Mapping[str, Range] = field(default_factory=dict)
    """The ranges of conditions that published rows do not state, by name. The tokens of a sample are proportional to
    such a condition."""
    metrics: Annotated[tuple[MetricSpec, ...], Meta(min_length=1)]
    """The metrics of the case."""
    flops: Flops | str
    """How FLOPs are counted; or `none`, in which case records have no utilisation, and no rule on FLOPs applies."""
    quirks: tuple[Quirk, ...]
    """The unexpected behaviours of the publisher's code."""
    environment: Environment = field(default_factory=dict)
    """The environment variables that the publisher's scripts set and that affect a measurement. On an accelerator,
    ranks get them unless they are already set."""
    does_not_run: Mapping[Name, Reason]
    """The stacks on which the case cannot run: their names, and the reason of each. It runs on all other stacks."""
    imports: tuple[Annotated[str, Meta(pattern=r"^[a-z0-9_]+\Z")], ...] = ()
    """The Python modules that a run of the case imports in addition to those that every case imports."""
    needs: tuple[Annotated[str, Meta(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*\Z")], ...] = ()
    """The packages that stacks install only for cases that need them, which are those under `compiled`, `optional`
    and `other_python` in a stack. On a stack that does not offer such a package, the case runs without it."""
    shapes: Annotated[tuple[str, ...], Meta(min_length=1)] = ("model", "sequence_length")
    """The conditions that must be equal for the ratio of two speeds to mean anything, since otherwise the speeds
    measure different work."""
    required_conditions: tuple[str, ...] = ()
    """The conditions without which a published row gives no verdict: one that was not published counts as one that
    differs."""
    memory: tuple[MeasuredMemory, ...] = ()
    """The memory that the case used, measured for each precision and layout. Empty for a case that adapts to the
    memory of the device."""


@dataclass(frozen=True, kw_only=True)
class Case(CaseManifest, Manifest):
    """A case of the catalog: its manifest, and what the catalog adds to it."""

    HOST_ALONE: ClassVar[frozenset[str]] = frozenset(
        (
            "absent",
            "conditions",
            "counts",
            "further_gates",
            "memory",
            "metrics",
            "published",
            "required_conditions",
            "schema",
            "task",
            "title",
        )
    )
    raw: Mapping[str, Any]
    """The whole manifest as JSON types."""
    path: Path
    """The path of the manifest's file."""
    workload: Workload
    """The model and the task of the case as manifests/catalogue/cases.yaml names them. For a case that is not in that
    file, the model has the case's name."""
    stacks: Mapping[str, Stack] = field(default_factory=dict, repr=False, compare=False)
    """All stacks of the catalog, by name."""

    def with_gate_among(self, metrics: Iterable[Any]) -> Case:
        """Return the case with a gate, which is the metric that decides a verdict, that is among these metrics.

        If `gate` is not among them, it is replaced by the first of `further_gates` that is. If none is, the case is
        returned unchanged.

        Args:
            metrics: the metrics of a claim, or of the record that is the baseline. Only their names are read.
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
        """The id of the formula by which FLOPs are counted; None if the case counts none."""
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
        """The formula by which the publisher computes a utilisation; None if it publishes none."""
        if isinstance(self.flops, str):
            return None
        return self.flops.published

    @property
    def software_conditions(self) -> tuple[str, ...]:
        """The conditions of the software. If they differ, a verdict is qualified (`software differs`), not
        refused."""
        return self.condition_groups.get("software", ())

    @property
    def work_conditions(self) -> tuple[str, ...]:
        """The conditions that determine which work was computed."""
        return self.condition_groups.get("work", ())


@dataclass(frozen=True, eq=False)
class Catalog:
    """All manifests, loaded and checked. A catalog equals only itself, so that it can be the key of a cache."""

    root: Path
    """The folder of the manifests."""
    cases: Mapping[str, Case]
    """The cases by name."""
    devices: Mapping[str, DeviceModel]
    """The device models by id."""
    stacks: Mapping[str, Stack]
    """The stacks by name."""
    claims: Mapping[str, Claim]
    """The claims by id; a claim is a published row that a case can reproduce."""
    limits: Mapping[str, AcceptanceLimit]
    """The limits of an acceptance by id."""
    fleet_limits: FleetLimits
    """The limits of nodes that are compared with each other."""
