"""Manifests as typed data, from which their JSON Schemas follow: Case, DeviceModel, Stack and Claim.

A limit of a value stands with its field's type; what connects fields, or files, is in `checks`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypedDict, get_args

from msgspec import Meta

from flagbench_core.flops import FORMULAS, Formula

NOT_PUBLISHED = "not published"
"""The value of a condition that the publisher did not state."""

Number = int | float
"""As it is written: `361` stays an integer."""
Scalar = str | int | float | bool
Positive = Annotated[int, Meta(gt=0)] | Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9.-]*\Z")]
Identifier = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*\Z")]
ConfigPath = Annotated[str, Meta(pattern=r"^[a-z_0-9]+(\.[a-z_0-9]+)*\Z")]
"""A path in the resolved configuration."""
Reason = Annotated[str, Meta(min_length=10)]
SourceText = Annotated[str, Meta(min_length=3)]
Word = Annotated[str, Meta(min_length=1)]
HttpsUrl = Annotated[str, Meta(pattern=r"^https://[^\s]+\Z")]
PackageName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z")]
PackageVersion = Annotated[str, Meta(pattern=r"^[^\s;]+\Z")]
PythonVersion = Annotated[str, Meta(pattern=r"^3\.[0-9]+\Z")]
DevicePath = Annotated[str, Meta(pattern=r"^/dev/[A-Za-z0-9._/-]+\Z")]
Architecture = Annotated[str, Meta(pattern=r"^[a-z]+_?[0-9]+[a-z]*\Z")]
ResourceName = Annotated[str, Meta(pattern=r"^[a-z0-9.-]+/[a-z0-9.-]+\Z")]
_PINNED = "of the form name==version"
Requirement = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(\[[a-z0-9,-]+\])?==[^\s;]+\Z", description=_PINNED)
]
PlainRequirement = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*==[^\s;]+\Z", description=_PINNED)]
Monitor = Literal["cpu", "amd-smi", "mx-smi", "nvml"]
Environment = Mapping[
    Annotated[str, Meta(pattern=r"^[A-Z_][A-Z0-9_]*\Z")], Annotated[str, Meta(pattern=r"^[^\n\r]*\Z")]
]
Capability = Literal["IPC_LOCK", "SYS_NICE", "SYS_PTRACE"]
Division = Literal["faithful", "tuned"]
Precision = Literal["fp32", "tf32", "fp16", "bf16"]
PeakPrecision = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"]
DeviceNumber = PeakPrecision | Literal["power_watts", "memory_bandwidth", "sm_clock_mhz"]
"""A peak or a limit of a device, which its manifest states or says why not."""
Preset = Literal["reference", "tiny"]
Axis = Literal["dp", "tp", "pp"]
Unit = Literal["samples/s", "tokens/s", "TFLOP/s", "GB/s", "s", "fraction", "GiB", "nats"]
Scope = Literal["job", "node", "device"]


def _keys(names: Any, *required: str) -> Meta:
    """That a mapping has no other keys than those of a Literal, and has those that are required."""
    rules: dict[str, Any] = {"propertyNames": {"enum": list(get_args(names))}}
    return Meta(extra_json_schema={**rules, "required": list(required)} if required else rules)


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
    divides: Annotated[Mapping[str, Annotated[tuple[ConfigPath, ...], Meta(min_length=1)]], _keys(Axis)] = field(
        default_factory=dict
    )
    """Values of a preset that the size of an axis must divide, by their path in it."""
    max_nodes: Count | None = None
    """Any number where absent."""
    resume: bool | None = None
    """Whether it writes checkpoints; as the case where absent."""
    does_not_run: Mapping[str, str] = field(default_factory=dict)
    """Stacks on which it does not run, each with the reason."""


class _Setting(TypedDict):
    path: Annotated[str, Meta(pattern=r"^[a-z_]+(\.[a-z_]+)+\Z")]
    type: Literal["integer", "number", "string", "boolean"]


class Setting(_Setting, total=False):
    """A hyper-parameter that `--set` changes, and the values it may have."""

    minimum: Number
    exclusive_minimum: Number
    maximum: Number
    exclusive_maximum: Number
    choices: tuple[Any, ...]


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
    """A publisher's utilisation: `metric` for each device x `flops_per_unit` / a peak (FLOP/s)."""

    id: str
    metric: str
    flops_per_unit: Positive
    peak: Positive
    source: str
    peaks: Annotated[Mapping[str, Positive], _keys(Precision)] = field(default_factory=dict)
    """Other peaks that the publisher divides by, by the executed precision."""

    def peak_of(self, precision: str) -> Number:
        """What the publisher divides by for a run of this executed precision."""
        return self.peaks.get(precision, self.peak)


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

    low: Positive
    high: Positive
    source: SourceText


@dataclass(frozen=True, kw_only=True)
class CaseManifest:
    """One workload: a model, a dataset, a task and its metrics."""

    VERSION: ClassVar[str] = "case/v1"

    name: Name
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
    divisions: Annotated[tuple[Division, ...], Meta(min_length=1)]
    division_presets: Annotated[
        Mapping[str, Annotated[Mapping[str, Mapping[str, Any]], _keys(Preset)]], _keys(Literal["tuned"])
    ] = field(default_factory=dict)
    """What a division changes of the presets: of `reference`, and of `tiny` on top of it."""
    precisions: Annotated[tuple[Precision, ...], Meta(min_length=1)]
    default_precision: Precision
    default_seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    resume: bool
    engines: Annotated[Mapping[str, Engine], Meta(min_length=1)]
    """How ranks compute together. Where there are several, presets.reference.engine.name names one."""
    checks: Annotated[tuple[Identifier, ...], Meta(min_length=1)]
    """The checks that the record of a run must contain, each where it applies, for the run to be a success."""
    presets: Annotated[Mapping[str, Mapping[str, Any]], _keys(Preset, "reference", "tiny")]
    settable: Mapping[str, Setting]
    condition_groups: Mapping[str, Annotated[tuple[str, ...], Meta(min_length=1)]]
    conditions: Mapping[str, Derivation] = field(default_factory=dict)
    """How a condition follows from the resolved configuration, by its name; left out if only a run knows it."""
    counts: Annotated[Mapping[str, Derivation], _keys(Literal["samples_per_step", "tokens_per_sample"])] = field(
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


class Manifest:
    """What Case, DeviceModel and Stack have in common: the image side gets a copy."""

    raw: Mapping[str, Any]
    HOST_ALONE: ClassVar[frozenset[str]] = frozenset()
    """Keys of the manifest that no image reads."""

    @property
    def read_by_images(self) -> dict[str, Any]:
        """What the image side reads of it. What only the host reads would make new images when it changes."""
        return {key: value for key, value in self.raw.items() if key not in self.HOST_ALONE}

    @cached_property
    def compiled(self) -> str:
        """The same as case.json or stacks/NAME.json: keys sorted, indented by one."""
        return json.dumps(self.read_by_images, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


@dataclass(frozen=True, kw_only=True)
class Case(CaseManifest, Manifest):
    """A case of the catalog."""

    HOST_ALONE: ClassVar[frozenset[str]] = frozenset(
        ("metrics", "conditions", "counts", "published", "title", "task", "schema", "further_gates")
    )
    raw: Mapping[str, Any]
    """The whole manifest."""
    path: Path
    stacks: Mapping[str, Stack] = field(default_factory=dict, repr=False, compare=False)
    """All stacks of the catalog, by name."""

    def held_to(self, metrics: Iterable[Any]) -> Case:
        """The case with the gate that decides against these metrics, of a claim or of a baseline."""
        names = {metric.name for metric in metrics}
        gate = next((name for name in (self.gate, *self.further_gates) if name in names), self.gate)
        return self if gate == self.gate else replace(self, gate=gate)

    def metric(self, name: str) -> MetricSpec | None:
        """The specification of a metric, or None if the case has none of that name."""
        return next((m for m in self.metrics if m.name == name), None)

    @property
    def formula(self) -> str | None:
        """The id of the formula of its FLOPs; None where it counts none."""
        return None if isinstance(self.flops, str) else self.flops.formula

    @property
    def count_flops(self) -> Formula | None:
        """The formula itself."""
        return None if self.formula is None else FORMULAS[self.formula]

    @property
    def published_formula(self) -> PublishedFormula | None:
        """How the publisher makes a utilisation of a throughput; None where it publishes none."""
        return None if isinstance(self.flops, str) else self.flops.published

    @property
    def software_conditions(self) -> tuple[str, ...]:
        """Conditions that qualify a verdict (`software differs`) instead of forbidding it."""
        return self.condition_groups.get("software", ())

    @property
    def work_conditions(self) -> tuple[str, ...]:
        """Conditions that say what was computed."""
        return self.condition_groups.get("work", ())


@dataclass(frozen=True)
class Peak:
    """A device's peak throughput at one precision, with its source."""

    flops: Annotated[int, Meta(ge=10**9)] | Annotated[float, Meta(ge=10**9)]
    """FLOP/s, as in 312.0e+12; who writes TFLOP/s writes less than the limit."""
    source: SourceText


@dataclass(frozen=True)
class Limit:
    """What a device cannot exceed, with its source."""

    value: Positive
    source: SourceText


@dataclass(frozen=True)
class Limits:
    """What a device cannot exceed; None where no source gives it."""

    power_watts: Limit | None = None
    """Power limit of the board, W."""
    memory_bandwidth: Limit | None = None
    """Bytes per second."""
    sm_clock_mhz: Limit | None = None
    """Highest clock of the processors, MHz."""


@dataclass(frozen=True, kw_only=True)
class DeviceModel(Manifest):
    """A model of device in one form factor: what it is capable of, as its datasheet says."""

    VERSION: ClassVar[str] = "device/v1"
    HOST_ALONE: ClassVar[frozenset[str]] = frozenset(
        ("schema", "vendor", "form_factor", "datasheet", "runs_above_boost", "not_published", "not_found")
    )

    id: Name
    """The name of its file, by which stacks list it."""
    name: str
    """The name that records and claims have for it."""
    match: tuple[SourceText, ...]
    """Whole names of the device as its driver reports them, in every spelling; any other name is another device."""
    vendor: Name
    form_factor: Word
    """Such as SXM, PCIe, NVL or OAM."""
    architecture: Architecture | None
    """As its compiler calls it, such as sm_90 or gfx942."""
    memory_gib: Positive
    """As it is sold: the datasheet's GB."""
    datasheet: HttpsUrl
    """Where its numbers are published; a source names another document where one of them is not."""
    peaks: Annotated[Mapping[str, Peak], _keys(PeakPrecision)]
    """Dense, by precision; matrix units where the device has them for it. int8 in operations per second."""
    limits: Limits = Limits()
    runs_above_boost: bool = False
    """Whether its peaks hold at a boost clock above which it runs: then a run may exceed them."""
    not_published: tuple[DeviceNumber, ...] = ()
    """Peaks and limits that the vendor does not print; also those of a precision that the device does not have."""
    not_found: tuple[DeviceNumber, ...] = ()
    """Those that are in no document that could be read."""
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def has_name(self, reported: str) -> bool:
        """Whether a driver, or a claim, calls it so; the whole name must match."""
        return reported == self.name or reported in self.match

    @property
    def flops(self) -> Mapping[str, float]:
        """Its peaks, FLOP/s, by precision."""
        return {precision: float(peak.flops) for precision, peak in self.peaks.items()}


@dataclass(frozen=True)
class Compiled:
    """A package compiled from source in a stage of its own, with the reason for its version."""

    name: PackageName
    version: PackageVersion
    env: Environment
    reason: Reason
    apt: tuple[Word, ...] = ()
    """Debian packages that its setup runs, in that stage alone."""


@dataclass(frozen=True)
class OtherPython:
    """A package taken as a wheel for another Python, with the reason. It replaces what the base has of it."""

    name: PackageName
    version: PackageVersion
    python: PythonVersion
    """Minor version, such as 3.10."""
    reason: Reason


@dataclass(frozen=True)
class StackBuild:
    """How the image of a stack is made on its base."""

    interpreter: Annotated[str, Meta(pattern=r"^/[^\s]+\Z")] | None
    """The base's Python; null: Debian's, in a virtual environment of ours."""
    apt: tuple[Word, ...]
    from_base: tuple[PackageName, ...]
    """Packages that the base brings and that are never installed over."""
    packages: tuple[Requirement, ...]
    """Direct requirements, `name==version`; the lock holds what they need in turn."""
    indexes: tuple[HttpsUrl, ...]
    """URLs of package indexes beside the default one."""
    compiled: tuple[Compiled, ...]
    """Only in images of cases that need them, like `optional`."""
    left_out: Mapping[Name, Reason]
    """Packages a reader would look for, and why they are not here."""
    env: Environment
    """Environment of the image."""
    optional: tuple[PlainRequirement, ...] = ()
    """Requirements like `packages`, installed only in images of cases that need them."""
    other_python: tuple[OtherPython, ...] = ()
    """The same, without what they need in turn."""


@dataclass(frozen=True)
class MultiNodeNeeds:
    """What `docker run` has to grant besides in a run of several nodes."""

    devices: tuple[DevicePath, ...]
    capabilities: tuple[Capability, ...]


@dataclass(frozen=True)
class DockerNeeds:
    """What `docker run` has to grant a container of a stack."""

    gpus: Literal["all", None]
    devices: tuple[DevicePath, ...]
    groups: tuple[Annotated[str, Meta(pattern=r"^[a-z0-9_-]+\Z")], ...]
    capabilities: tuple[Capability, ...]
    shm_size: Annotated[str, Meta(pattern=r"^[1-9][0-9]*[mg]\Z")]
    """As docker writes it: a number and `m` or `g`."""
    ulimits: Annotated[Mapping[str, Annotated[int, Meta(ge=-1)]], _keys(Literal["memlock", "stack", "nofile"])]
    """Soft and hard limit alike; -1 is unlimited, `memlock` and `stack` are in bytes."""
    root: bool
    """Whether a device demands uid 0."""
    multi_node: MultiNodeNeeds


@dataclass(frozen=True)
class KubernetesNeeds:
    """What a pod of a stack asks its cluster for, per device where it says so."""

    resource: ResourceName | None
    """The extended resource of one device; null on processors."""
    node_labels: Mapping[
        str,
        Annotated[
            tuple[Annotated[str, Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")], ...],
            Meta(min_length=1),
        ]
        | None,
    ]
    """Labels a node must carry, each with the values that will do.

    Null: the names of the devices, with dashes for spaces."""
    tolerations: tuple[ResourceName, ...]
    memory_per_device_gib: Count
    cpus_per_device: Count
    shm_per_device_gib: Count


@dataclass(frozen=True)
class Redistribution:
    """Whether a base's layers may be given to others; `flagbench push` sends them only then, or when told to."""

    status: Literal["allowed", "restricted", "unknown"]
    """`restricted`: on conditions of the licence that a person has to judge. `unknown` counts as not allowed."""
    reason: Reason
    source: HttpsUrl | None
    """Where the licence can be read."""


@dataclass(frozen=True)
class Base:
    """The image that a stack's images are made on."""

    image: Annotated[str, Meta(pattern=r"^[^\s]+\Z")] | None
    obtain: Reason | None
    """How a person gets the base, where no public one exists."""
    redistribution: Redistribution


@dataclass(frozen=True)
class DeviceSupport:
    """How a process of a stack finds its devices, and how ranks reach each other."""

    kind: Literal["cpu", "cuda"]
    """What torch calls them."""
    visibility_variable: str | None
    driver_floor: str | None
    backend: Literal["gloo", "nccl", "mccl"]
    architectures: tuple[Architecture, ...] = ()
    """Those on which it also runs where no manifest has the device."""


@dataclass(frozen=True, kw_only=True)
class StackManifest:
    """One vendor software stack on a family of devices."""

    VERSION: ClassVar[str] = "stack/v1"

    name: Name
    title: str
    vendor: Name
    aliases: tuple[Name, ...]
    base: Base | None
    """Null: there is no image of it, and a run is native."""
    platform: Literal["linux/amd64", "linux/arm64"]
    python: PythonVersion
    expects: Annotated[Mapping[str, Word], Meta(min_length=1)]
    """Versions that the image must show when it is built and when it starts, by package; a prefix that ends at a dot
    will do. torch where the image has one."""
    device: DeviceSupport
    monitor: Monitor
    """The parser of what its devices say of themselves: a module of telemetry/monitors on the image side, or cpu."""
    devices: tuple[Name, ...]
    """Device models that it supports: names of files in devices/."""
    does_not_run: Mapping[Name, Reason]
    """Cases this stack cannot run, each with the reason; every other case it runs."""
    build: StackBuild
    docker: DockerNeeds
    kubernetes: KubernetesNeeds


@dataclass(frozen=True, kw_only=True)
class Stack(StackManifest, Manifest):
    """A stack of the catalog."""

    runs: tuple[str, ...]
    """Every other case of the catalog that does not refuse this stack, sorted."""
    raw: Mapping[str, Any]
    """The manifest as it is compiled for the image side, with what that reads of the devices as `accelerators`."""
    path: Path
    accelerators: tuple[DeviceModel, ...]
    """The devices themselves: all of `devices`, or those that `chosen` names."""
    chosen: str | None = None
    """The name of some of its devices, such as h100 or h100-sxm."""

    @property
    def selector(self) -> str:
        """What names it, and its chosen devices, in a command."""
        return self.chosen or self.name

    @property
    def names(self) -> tuple[str, ...]:
        """Its name, and those that it can also be given by."""
        return (self.name, *self.aliases)

    @property
    def base_image(self) -> str | None:
        """The base's reference; None where no public one exists."""
        return self.base.image if self.base else None

    @property
    def device_kind(self) -> str:
        """`cpu`, or `cuda` for all that torch calls so."""
        return self.device.kind

    def accelerator(self, reported: str) -> DeviceModel | None:
        """The device model that a driver reports by this name; the whole name must match."""
        return next((entry for entry in self.accelerators if entry.has_name(reported)), None)


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
    executed: Precision
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


@dataclass(frozen=True)
class Catalog:
    """Everything in manifests/, loaded and checked."""

    root: Path
    cases: Mapping[str, Case]
    devices: Mapping[str, DeviceModel]
    stacks: Mapping[str, Stack]
    claims: Mapping[str, Claim]
