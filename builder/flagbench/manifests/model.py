"""What there is, as typed data: Case, Stack and Claim, one field per key of their manifests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from flagbench_core.flops import FORMULAS, Formula

NOT_PUBLISHED = "not published"
"""The value of a condition that the publisher did not state."""

Number = int | float
"""As it is written: `361` stays an integer."""
Scalar = str | int | float | bool


@dataclass(frozen=True)
class MetricSpec:
    """A metric of a case: its unit, its direction and the conditions its value depends on."""

    name: str
    unit: str
    scope: str
    better: str
    depends_on: tuple[str, ...]
    """Names of conditions, the groups of the manifest already expanded, in the manifest's order."""
    held_by: str | None = None
    """The measured metric a published value of this name is compared with, where it is another one."""


@dataclass(frozen=True)
class Quirk:
    """A surprise in the publisher's code, and whether a comparable run repeats it."""

    id: str
    decision: str
    publisher: str
    here: str
    difference: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class PublishedFormula:
    """A publisher's utilisation: `metric` for each device x `flops_per_unit` / a peak (FLOP/s)."""

    id: str
    metric: str
    flops_per_unit: Number
    peak: Number
    source: str
    peaks: Mapping[str, Number] = field(default_factory=dict)
    """Other peaks that the publisher divides by, by the executed precision."""

    def peak_of(self, precision: str) -> Number:
        """What the publisher divides by for a run of this executed precision."""
        return self.peaks.get(precision, self.peak)


@dataclass(frozen=True)
class Range:
    """The values that a condition can have which no row publishes; the tokens of a sample are proportional to it."""

    low: Number
    high: Number
    source: str


class Manifest:
    """What cases and stacks have in common: the image side gets a copy."""

    raw: Mapping[str, Any]

    @cached_property
    def compiled(self) -> str:
        """The whole manifest as case.json or stacks/NAME.json: keys sorted, indented by one, newline at the end."""
        return json.dumps(self.raw, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


@dataclass(frozen=True, kw_only=True)
class Case(Manifest):
    """One workload: a model, a dataset, a task and its metrics."""

    name: str
    title: str
    unit: str
    gate: str
    divisions: tuple[str, ...]
    precisions: tuple[str, ...]
    presets: Mapping[str, Mapping[str, Any]]
    settable: Mapping[str, Mapping[str, Any]]
    checks: tuple[str, ...]
    """The checks that the record of a run must contain, each where it applies."""
    condition_groups: Mapping[str, tuple[str, ...]]
    conditions: Mapping[str, Any] = field(default_factory=dict)
    """How a condition follows from the resolved configuration, by its name: see `flagbench.verdict.derivation`."""
    counts: Mapping[str, Any] = field(default_factory=dict)
    """How samples of a step and tokens of a sample follow from it, in the same form."""
    ranges: Mapping[str, Range] = field(default_factory=dict)
    does_not_run: Mapping[str, str]
    """Stacks that cannot run this case, each with the reason."""
    needs: tuple[str, ...] = ()
    """Packages that a stack installs for this case alone, by their canonical names."""
    metrics: tuple[MetricSpec, ...]
    quirks: tuple[Quirk, ...]
    published: Mapping[str, str]
    shapes: tuple[str, ...] = ("model", "sequence_length")
    """Conditions without which two speeds measure different work, so that their ratio means nothing."""
    published_formula: PublishedFormula | None = None
    """How the publisher makes a utilisation of a throughput; None where it publishes none."""
    raw: Mapping[str, Any]
    """The whole manifest, as it is compiled for the image side."""
    path: Path
    stacks: Mapping[str, Stack] = field(default_factory=dict, repr=False, compare=False)
    """All stacks of the catalog, by name."""

    def metric(self, name: str) -> MetricSpec | None:
        """The specification of a metric, or None if the case has none of that name."""
        return next((m for m in self.metrics if m.name == name), None)

    @property
    def formula(self) -> str | None:
        """The id of the formula of its FLOPs; None where it counts none."""
        return None if self.raw["flops"] == "none" else str(self.raw["flops"]["formula"])

    @property
    def flops(self) -> Formula | None:
        """The formula itself."""
        return None if self.formula is None else FORMULAS[self.formula]

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
    """A device's peak throughput at one precision, FLOP/s, with its source."""

    flops: Number
    source: str


@dataclass(frozen=True)
class Limit:
    """What a device cannot exceed, with its source."""

    value: Number
    source: str


@dataclass(frozen=True)
class Limits:
    """What a device cannot exceed; None where no source gives it."""

    power_watts: Limit | None = None
    """Power limit of the board, W."""
    memory_bandwidth: Limit | None = None
    """Bytes per second."""
    sm_clock_mhz: Limit | None = None
    """Highest clock of the processors, MHz."""


@dataclass(frozen=True)
class Accelerator:
    """A device model a stack runs on; `match` has the whole names by which drivers report it."""

    match: tuple[str, ...]
    name: str
    peaks: Mapping[str, Peak]
    memory_gib: Number
    limits: Limits = Limits()


@dataclass(frozen=True)
class Compiled:
    """A package compiled from source in a stage of its own, with the reason for its version."""

    name: str
    version: str
    env: Mapping[str, str]
    reason: str
    apt: tuple[str, ...] = ()
    """Debian packages that its setup runs, in that stage alone."""


@dataclass(frozen=True)
class OtherPython:
    """A package taken as a wheel for another Python, with the reason."""

    name: str
    version: str
    python: str
    """Minor version, such as 3.10."""
    reason: str


@dataclass(frozen=True)
class StackBuild:
    """How the image of a stack is made on its base."""

    interpreter: str | None
    """The base's Python; None: Debian's, in a virtual environment of ours."""
    apt: tuple[str, ...]
    from_base: tuple[str, ...]
    """Packages that the base brings and that are never installed over."""
    packages: tuple[str, ...]
    """Direct requirements, `name==version`; the lock holds what they need in turn."""
    indexes: tuple[str, ...]
    """URLs of package indexes beside the default one."""
    compiled: tuple[Compiled, ...]
    """Only in images of cases that need them, like `optional`."""
    left_out: Mapping[str, str]
    """Packages a reader would look for, and why they are not here."""
    env: Mapping[str, str]
    optional: tuple[str, ...] = ()
    """Requirements like `packages`, installed only in images of cases that need them."""
    other_python: tuple[OtherPython, ...] = ()
    """The same, without what they need in turn."""


@dataclass(frozen=True)
class DockerNeeds:
    """What `docker run` has to grant a container of a stack."""

    gpus: str | None
    devices: tuple[str, ...]
    groups: tuple[str, ...]
    capabilities: tuple[str, ...]
    shm_size: str
    """As docker writes it: a number and `m` or `g`."""
    ulimits: Mapping[str, int]
    """Soft and hard limit alike; -1 is unlimited, `memlock` and `stack` are in bytes."""
    root: bool
    """Whether a device demands uid 0."""
    multi_node_devices: tuple[str, ...]
    multi_node_capabilities: tuple[str, ...]


@dataclass(frozen=True)
class KubernetesNeeds:
    """What a pod of a stack asks its cluster for, per device where it says so."""

    resource: str | None
    """The extended resource of one device; None on processors."""
    node_labels: Mapping[str, tuple[str, ...]]
    """Labels a node must carry, each with the values that will do."""
    tolerations: tuple[str, ...]
    memory_per_device_gib: int
    cpus_per_device: int
    shm_per_device_gib: int


@dataclass(frozen=True)
class Redistribution:
    """Whether a base's layers may be given to others."""

    status: Literal["allowed", "restricted", "unknown"]
    """`restricted`: on conditions of the licence that a person has to judge. `unknown` counts as not allowed."""
    reason: str
    source: str | None
    """Where the licence can be read."""


@dataclass(frozen=True)
class Stack(Manifest):
    """One vendor software stack on one accelerator."""

    name: str
    title: str
    vendor: str
    aliases: tuple[str, ...]
    base_image: str | None
    base_obtain: str | None
    """How a person gets the base, where no public one exists."""
    base_redistribution: Redistribution
    platform: str
    python: str
    expects: Mapping[str, str]
    """Versions that the image must show when it starts, by package; a prefix that ends at a dot will do."""
    does_not_run: Mapping[str, str]
    """Cases this stack cannot run, each with the reason."""
    runs: tuple[str, ...]
    """Every other case of the catalog that does not refuse this stack, sorted."""
    build: StackBuild
    device_kind: str
    visibility_variable: str | None
    docker: DockerNeeds
    kubernetes: KubernetesNeeds
    accelerators: tuple[Accelerator, ...]
    raw: Mapping[str, Any]
    path: Path

    def accelerator(self, reported: str) -> Accelerator | None:
        """The device model that a driver reports by this name; the whole name must match."""
        return next((entry for entry in self.accelerators if reported in entry.match), None)


@dataclass(frozen=True)
class ClaimMetric:
    """One published value. `of` is the total where a cell was printed as used/total."""

    name: str
    value: Number
    unit: str
    scope: str
    of: Number | None
    printed: str | None
    """The cell as it was printed, where that is not `value`: `80.52%`."""
    source: Source | None
    """An earlier version of the table, whose value a later one took out; None for the claim's own source."""


@dataclass(frozen=True)
class Anomaly:
    """An oddity of a published row, with its derivation; the row itself is left as it was printed."""

    id: str
    field: str
    note: str


@dataclass(frozen=True)
class Source:
    """Where a claim was published."""

    project: str
    url: str
    file: str
    commit: str
    table: str


@dataclass(frozen=True)
class ClaimRun:
    """How to run what a claim says: the arguments of the image."""

    nodes: int
    gpus: int
    preset: str
    division: str
    precision: str
    set: Mapping[str, Scalar]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One published row: its source, its conditions and its metrics."""

    id: str
    case: str
    title: str
    row: str
    stack: str | None
    """The stack that runs it; None if its hardware has no stack; `no_stack` then says why."""
    no_stack: str | None = None
    precision_label: str
    precision_executed: str
    precision_derivation: str
    run: ClaimRun
    conditions: Mapping[str, Scalar]
    """By name; NOT_PUBLISHED where the publisher is silent."""
    environment: Mapping[str, Scalar]
    metrics: tuple[ClaimMetric, ...]
    anomalies: tuple[Anomaly, ...]
    source: Source
    path: Path
    aligned: bool | None = None
    """Whether the row says that its losses are aligned with the publisher's; None if it does not say."""

    def metric(self, name: str) -> ClaimMetric | None:
        """A published value by the metric's name, or None if the row has none."""
        return next((m for m in self.metrics if m.name == name), None)


@dataclass(frozen=True)
class Catalog:
    """Everything in manifests/, loaded and checked."""

    root: Path
    cases: Mapping[str, Case]
    stacks: Mapping[str, Stack]
    claims: Mapping[str, Claim]
