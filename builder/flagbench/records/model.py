"""A record, the result of one run, as typed data: the classes of a `record/v1` document and its parts.

`read` makes a Record from JSON. The types have the limits of the JSON Schema, which is generated from this file:
the docstrings of classes and fields are its descriptions. Fields that are not listed here are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

from flagbench.records.evidence import Evidence, Packed
from flagbench.records.scalars import (
    MOST_RANKS,
    Amount,
    Count,
    Digest,
    Fraction,
    Name,
    Number,
    PositiveCount,
    RecordId,
    RunId,
    Scalar,
    Time,
)
from flagbench_core.health.reading import DeviceHealth


class SlowestDevice(Struct, frozen=True):
    """The slowest of the devices that a metric is the middle one, or the mean, of."""

    rank: Count
    value: Number
    """In the unit of the metric."""
    share: Amount
    """Of the median of the others."""


class Metric(Struct, frozen=True):
    """One measured value. `ci95` is the 95 % interval (low, high), where the run gives one."""

    name: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*\Z")]
    value: Number
    unit: str
    scope: Literal["job", "node", "device"]
    n: PositiveCount | None = None
    stdev: Amount | None = None
    ci95: tuple[Number, Number] | None = None
    ci_method: str | None = None
    ci_reason: str | None = None
    """Why the window gave no interval."""
    slowest_device: SlowestDevice | None = None
    """None for a single device, and for what all devices do together."""
    note: str | None = None


class Check(Struct, frozen=True):
    """One sanity check of a run."""

    name: str
    ok: bool
    detail: str
    values: dict[str, Number] = {}
    """What it was decided by, as `flagbench_core.checks` names it."""


class Status(Struct, frozen=True):
    """How a run ended, and where."""

    state: Literal["ok", "failed", "interrupted"]
    phase: Literal[
        "usage",
        "preflight",
        "launch",
        "init",
        "data",
        "warmup",
        "train",
        "val",
        "infer",
        "measure",
        "eval",
        "report",
        "done",
    ]
    reason: str | None
    exit_code: Count
    remedy: str | None = None


class Builder(Struct, frozen=True):
    """The version of flagbench that wrote the record."""

    version: str
    commit: str | None = None
    commit_reason: str | None = None


class Layout(Struct, frozen=True):
    """How the ranks share the model: data-parallel replicas, tensor-parallel parts, pipeline stages."""

    dp: PositiveCount
    tp: PositiveCount
    pp: PositiveCount


class Device(Struct, frozen=True):
    """One device of the system."""

    index: Count
    name: str
    memory_bytes: Count | None = None
    uuid: str | None = None
    """By which one physical device, or its slice, is told from another; None where the driver does not say."""


class Cpu(Struct, frozen=True):
    """The processor of node 0."""

    model: str | None = None
    logical: Count | None = None
    usable: Count | None = None
    """The logical processors that the run may use: fewer where it was pinned, by taskset or a cpuset."""


class Image(Struct, frozen=True):
    """The image that ran, or why that is unknown."""

    context_digest: str | None = None
    digest: str | None = None
    """Of its manifest, `REPOSITORY@sha256:...`; the engine's id where it was never pushed."""
    id: str | None = None
    """`sha256:<64 hex>` of its configuration: the same in an engine (classic store), a registry and a bucket."""
    reason: str | None = None


class System(Struct, frozen=True):
    """The machines and devices of the run."""

    nodes: PositiveCount
    devices_per_node: PositiveCount
    devices: tuple[Device, ...]
    driver: str | None = None
    versions: dict[str, str] = {}
    """Versions that a vendor keeps apart: of MetaX mx_smi, driver, maca and vbios."""
    host: str | None = None
    """The name of node 0."""
    kernel: str | None = None
    os: str | None = None
    cpu: Cpu = Cpu()
    memory_bytes: Count | None = None
    nics: tuple[dict[str, Any], ...] = ()
    networks: tuple[str, ...] = ()
    """Between nodes, as NCCL chose them: `IB`, `Socket`, or a plugin's name. Empty where its log does not say."""
    image: Image = Image()
    clock_set_seconds: Number | None = None
    """By how much node 0's time of day was set during the run; None if by less than a second."""


class Software(Struct, frozen=True):
    """The software of the run, by version."""

    python: str
    torch: str | None
    cuda: str | None = None
    hip: str | None = None
    """In place of CUDA, in a torch built for ROCm."""
    cudnn: str | None = None
    nccl: str | None = None
    packages: dict[str, str] = {}
    lock_digest: str | None = None
    lock_digest_reason: str | None = None
    precision: dict[str, Any] | None = None
    """Switches as set, and the precision that a matrix product really had."""
    deterministic: bool | None = None
    threads: Count | None = None
    """Of torch's operators on the host, in rank 0."""
    environment: dict[str, str] = {}
    """Variables of the ranks that change a measurement, and those given by --env."""
    stack_expects: dict[str, Any] = {}
    """Versions that the stack's manifest expects."""


class Timing(Struct, frozen=True):
    """Seconds, node 0 rank 0."""

    init: Amount | None = None
    warmup: Amount | None = None
    train: Amount | None = None
    data_wait: Amount | None = None
    step: Amount | None = None
    eval: Amount | None = None
    e2e: Amount | None = None
    eval_initial: Amount | None = None
    checkpoint: Amount | None = None
    val: Amount | None = None
    infer: Amount | None = None
    measure: Amount | None = None


class Window(Struct, frozen=True):
    """The steps that p_core is computed from."""

    first_step: Count
    steps: Count
    samples: Count
    seconds: Amount
    """Device times of its steps, the largest of the ranks' own sums."""
    rank: Count | None = None
    """The rank whose sum that is."""
    host_seconds: Amount | None = None
    """The same of host times with all between the steps, without evaluations and checkpoints."""
    step_seconds: tuple[Amount, ...] = ()
    """Device time of each step on `rank`; at most 2000, evenly thinned."""
    steady: bool | None = None
    """Whether the drift is at most 2 %; None for too few steps."""
    drift: Number | None = None
    """Median of the second half over the first, less 1."""
    step_median: Amount | None = None
    step_p5_p95: tuple[Amount, Amount] | None = None


class Peak(Struct, frozen=True):
    """A device's peak, FLOP/s, and its source."""

    flops: Amount
    precision: str
    source: str


class Ceiling(Struct, frozen=True):
    """The highest throughput measured in this run, FLOP/s per device."""

    flops: Amount
    precision: str
    method: str
    steady: bool | None = None
    """Whether its repeats neither drifted nor scattered; None in records of versions that did not look."""
    spread: Amount | None = None
    """Of the repeats: their standard deviation over their median, by the median absolute deviation."""


class Flops(Struct, frozen=True):
    """Model FLOPs of the window, all ranks; peak is per device."""

    formula: str
    executed: Amount
    useful: Amount
    recomputed: Amount | None = None
    """What recomputing activations adds to `executed`."""
    peak: Peak | None = None
    peak_reason: str | None = None
    measured_ceiling: Ceiling | None = None


class Work(Struct, frozen=True):
    """The work of the whole run, all ranks."""

    unit: str
    steps: Count
    samples_executed: Count
    samples_published_count: Count = 0
    tokens_executed: Count | None = None
    tokens_useful: Count | None = None


class Losses(Struct, frozen=True):
    """The loss of each step, of the first ones in a long run; None where it is not finite."""

    first_step: Count
    """Number of the first step in the published run, from 0; larger for a resumed run."""
    steps: Count
    """Steps of this run."""
    values: tuple[Number | None, ...]
    """Of the first 24,000 steps in a longer run."""


class Quality(Struct, frozen=True):
    """Checks, losses and evaluations of the run."""

    checks: tuple[Check, ...]
    loss_curve: tuple[tuple[Count, Number], ...] = ()
    losses: Losses | None = None
    """The complete loss curve, which `loss_curve` thins to 200 points."""
    evaluations: tuple[dict[str, Any], ...] = ()
    converged: bool | None = None
    resumed: dict[str, Any] | None = None
    """The checkpoint that the run resumed from."""
    training: dict[str, Any] | None = None
    """What the case knows once training has ended: skipped updates, a loss scale, the bubble of a pipeline."""
    absent: dict[str, str] = {}
    """What could not be measured, each with the reason."""


class SlowDevice(Struct, frozen=True):
    """A device that is slower than the others by more than the spread of its measurements explains."""

    rank: Count
    share: Amount
    """Of the median of the others."""


class Measurement(Struct, frozen=True):
    """One operation, repeated on all devices at the same time; rates in FLOP/s or B/s, medians of the repeats."""

    name: str
    operation: str
    unit: str
    repeats: PositiveCount
    """The last ones, which were kept."""
    steady: bool
    """Whether they neither drift nor scatter on any device."""
    rate: Amount
    """Of the middle device; of a collective, its algorithm bandwidth."""
    spread: Amount
    """Standard deviation over median, by the median absolute deviation."""
    stdev: Amount
    ci95: tuple[Amount, Amount] | None = None
    bus_rate: Amount | None = None
    """Of a collective: by the factors of nccl-tests."""
    devices: tuple[Amount, ...] = ()
    """Of each rank, of at most 64."""
    precision: str | None = None
    shape: tuple[PositiveCount, ...] = ()
    """m, n and k of a product of (m, k) by (k, n)."""
    transposed: bool | None = None
    """Whether the second factor is stored as (n, k)."""
    tried: PositiveCount | None = None
    """Shapes of which this one was the fastest."""
    cleared_bytes: PositiveCount | None = None
    """Of a buffer that is zeroed before each product, so that its operands are not in a cache."""
    heated_seconds: Amount | None = None
    """Of products that heated the device before, once in the run; None where none did. Then the repeats before the
    kept ones and these took at least 1 s."""
    bytes: PositiveCount | None = None
    pinned: bool | None = None
    """Whether the memory of the host is pinned."""


class Result(Struct, frozen=True):
    """A fixed operation, computed twice on every device and compared bit by bit."""

    name: str
    digests: dict[str, tuple[Count, ...]]
    """The ranks by the digest of their result."""
    changed: tuple[Count, ...] = ()
    """Ranks whose two results differ."""
    apart: tuple[Count, ...] = ()
    """Ranks whose result is not that of most devices of their model and driver, or all where none is."""


class OtherBits(Struct, frozen=True):
    """A fixed operation whose result on a rank is not that of before the laps, or of the devices alike."""

    name: str
    rank: Count


class LapFinding(Struct, frozen=True):
    """What the health of a device says after a lap (`flagbench_core.health.judge`)."""

    rank: Count
    kind: str
    """The rule, such as xid-79 or ecc-uncorrected."""
    outcome: str
    """FAIL, FIX or INCONCLUSIVE. After the first two no other lap was begun."""
    reason: str


class Lap(Struct, frozen=True):
    """One lap of a soak, in which all devices are measured at the same time."""

    lap: PositiveCount
    """From 1 on."""
    seconds: Amount
    rates: dict[str, tuple[Amount, ...]] = {}
    """By measurement, the median of each rank over the lap in FLOP/s or B/s; of a collective one, its algorithm
    bandwidth. Without those that are the fastest of several shapes. Empty for more than 64 ranks."""
    other_bits: tuple[OtherBits, ...] = ()
    """Computed after the lap. If there are any, it was the last one."""
    health: tuple[LapFinding, ...] | None = None
    """None where it was not read: on a processor, and after a reading that did not end in time."""
    counters: dict[str, tuple[Count, ...]] = {}
    """Those of a device's health that rose since the soak began, by how much on each rank."""


class Rank(Struct, frozen=True):
    """One rank of the run; seconds."""

    rank: Count
    node: Count
    local_rank: Count | None = None
    pid: Count | None = None
    host: str | None = None
    uuid: str | None = None
    """Of its device."""
    steps: Count | None = None
    step_median: Amount | None = None
    first_collective_median: Amount | None = None
    collective_wait_median: Amount | None = None
    data_wait_total: Amount | None = None
    processors: Count | None = None
    """The logical processors that it may use."""
    processor_seconds: Amount | None = None
    """Its main thread ran on a processor during the loop."""
    processor_wait_seconds: Amount | None = None
    """Its main thread was ready to run and waited for a processor."""
    bubble: Annotated[float, Meta(le=1)] | Annotated[int, Meta(le=1)] | None = None
    """Share of its pipeline's time over the window in which it ran no forward or backward pass."""
    exit: str | None = None


class RankColumns(Struct, frozen=True):
    """What the ranks of a large job have, in the order of ranks. Those that differ are listed by themselves, too."""

    ranks: Annotated[int, Meta(ge=1, le=MOST_RANKS)]
    hosts: tuple[str | None, ...]
    """By node; all have as many ranks."""
    steps: Count
    exit: str | None = None
    pids: Packed | None = None
    processor_milliseconds: Packed | None = None
    processor_wait_milliseconds: Packed | None = None


class WindowEnergy(Struct, frozen=True):
    """The energy of one device in the steps of the window and the waits between them.

    Without the warm-up, evaluations and checkpoints.
    """

    joules: Amount
    source: Literal["counter", "power"]
    """The device's own counter of energy, or samples of its power, integrated."""
    steps: Count
    """Those of `window`, which it is of."""
    seconds: Amount
    """From the start of the steps to their end on the device."""
    error_j: Amount | None = None
    """The most by which `joules` is wrong because the counter is interpolated between readings; None for power."""


class RunHealth(Struct, frozen=True):
    """What was read of a device's health, as `flagbench_core.health.reading` describes it; absent if it was not."""

    before: DeviceHealth | None = None
    """While the ranks imported, before they used the device."""
    after: DeviceHealth | None = None
    """After the last rank had ended."""


class DeviceTelemetry(Struct, frozen=True):
    """Telemetry of one device."""

    index: Count | None = None
    name: str | None = None
    throttle_seconds: dict[str, Amount] = {}
    foreign_processes: Count = 0
    mem_used_before_bytes: Count = 0
    mem_used_max_bytes: Count | None = None
    power_mean_w: Number | None = None
    power_max_w: Number | None = None
    energy_j: Number | None = None
    """Of the whole training or inference, its warm-up, evaluations and checkpoints included."""
    energy_seconds: Number | None = None
    window_energy: WindowEnergy | None = None
    """None in records of versions that did not measure it."""
    temperature_max_c: Number | None = None
    sm_clock_mean_mhz: Number | None = None
    sm_clock_min_mhz: Number | None = None
    sm_clock_busy_mhz: Amount | None = None
    """The mean while the device was not idle."""
    sm_clock_max_mhz: Amount | None = None
    """The highest that the device allows."""
    power_limit_w: Amount | None = None
    """The limit in force; `power_limit_default_w` is the device's own."""
    power_limit_default_w: Amount | None = None
    util_mean: Number | None = None
    health: RunHealth | None = None
    """None in records of versions that did not read it, and where the monitor names no device."""


class CpuTelemetry(Struct, frozen=True):
    """Telemetry of node 0's logical processors."""

    util_mean: Fraction | None = None
    """The share of them that was busy."""
    others_mean: Amount | None = None
    """How many of them processes outside the run kept busy."""
    steal_mean: Fraction | None = None
    """The share that other virtual machines took."""
    quota: Amount | None = None
    """How many of them the run's control group may use."""
    throttled: Fraction | None = None
    """The share of the quota's periods in which it was used up."""
    mem_used_max_bytes: Count | None = None


class Telemetry(Struct, frozen=True):
    """Telemetry, summarised over the run; of node 0."""

    devices: tuple[DeviceTelemetry, ...] = ()
    cpu: CpuTelemetry = CpuTelemetry()
    problems: tuple[str, ...] = ()
    """What is wrong with it: errors of the monitor, each once, and samples that end before the run."""
    samples: Count | None = None
    errors: Count = 0
    """Readings that failed."""
    interval_s: Amount | None = None
    """The median between samples; None for fewer than two."""
    unavailable: str | None = None
    """Why no device was monitored."""


class BundleDigest(Struct, frozen=True):
    """The bundle of raw evidence of the node that printed the record."""

    node: Count
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    bytes: Count


class Launch(Struct, frozen=True):
    """The run by the clock of the host that launched it, `flagbench run`, not by the run's own."""

    started_at: Time
    seconds: Amount
    """From before the process or the container was started until it had ended."""
    via: Name


class Record(Struct, frozen=True):
    """The record of one run. A metric that was not measured is absent, never NaN, null or 0."""

    VERSION: ClassVar[str] = "record/v1"

    record_id: RecordId
    run_id: RunId
    """The same on all nodes of the run."""
    created_at: Time
    """UTC."""
    flagbench: Builder
    case: Name
    stack: Name
    preset: Literal["reference", "tiny"]
    division: Literal["faithful"]
    config: dict[str, Any] | None
    """The resolved configuration; None where it could not be resolved."""
    config_digest: Digest | None
    """sha256 of `config` as canonical JSON: sorted keys, no spaces."""
    conditions: Mapping[str, Scalar | None]
    """What a claim's conditions are compared with; None where it could not be found out."""
    system: System
    software: Software
    timing: Timing
    metrics: tuple[Metric, ...]
    flops: Flops | None
    work: Work | None
    quality: Quality | None
    telemetry: Telemetry | None
    ranks: tuple[Rank, ...]
    """One for each; in a document with rank_columns only those that differ from most others."""
    status: Status
    argv: tuple[str, ...] = ()
    """Arguments of the entrypoint, without secrets."""
    bundle: BundleDigest | None = None
    """That of the node that printed the record."""
    layout: Layout | None = None
    window: Window | None = None
    measurements: tuple[Measurement, ...] = ()
    """Of a case that measures the device."""
    slow_devices: tuple[SlowDevice, ...] = ()
    """In all measurements together: the median share of the others' rate."""
    results: tuple[Result, ...] = ()
    """Of fixed operations on these devices."""
    laps: tuple[Lap, ...] = ()
    """Those that a soak finished; `measurements` is of the first."""
    rank_columns: RankColumns | None = None
    """Of more than some hundred ranks; `ranks` has an entry for each all the same."""
    evidence: Evidence | None = None
    evidence_digest: Digest | None = None
    """sha256 of `evidence` as canonical JSON."""
    evidence_reason: str | None = None
    """Why the record of a large job has no evidence."""
    telemetry_reason: str | None = None
    launch: Launch | None = None
    """None where no `flagbench run` launched it, or where the image delivered the record by itself."""
    raw: dict[str, Any] = {}
    """The whole document, including fields unknown to this model."""

    @property
    def checks(self) -> tuple[Check, ...]:
        """The sanity checks that the run made; it is empty if the run ended before the first one."""
        if self.quality is None:
            return ()
        return self.quality.checks

    @property
    def day(self) -> str:
        """The day on which the record was made, such as 2026-01-31, UTC."""
        return self.created_at.partition("T")[0]

    @property
    def duration(self) -> float | None:
        """How long the run took in seconds, without imports; None if nothing was timed.

        For a run that did not reach its end it is the sum of the phases that were timed.
        """
        timing = self.timing
        seconds = timing.e2e
        if seconds is None:
            parts = (
                timing.init,
                timing.train,
                timing.eval_initial,
                timing.checkpoint,
                timing.val,
                timing.infer,
                timing.measure,
            )
            seconds = math.fsum(part for part in parts if part is not None)
        if seconds <= 0:
            return None
        return float(seconds)

    def metric(self, name: str) -> Metric | None:
        """Return a measured metric by its name, or None if it was not measured."""
        for metric in self.metrics:
            if metric.name == name:
                return metric
        return None
