"""The types of a record, the JSON document with the result of one run (`record/v1`).

`read` parses JSON into a Record; verdicts and reports read its fields. The JSON Schema of a record is generated from
this file: types become its rules, and the docstrings of classes and fields its descriptions. They speak of JSON, so a
field that is None here is null there. Fields of a document that are not listed here are ignored.
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
    """The slowest of several devices whose median or mean a metric is."""

    rank: Count
    """The rank that used the device."""
    value: Number
    """The value of this device, in the unit of the metric."""
    share: Amount
    """The value of this device divided by the median of the other devices' values."""


class Metric(Struct, frozen=True):
    """One measured value of the run, such as a speed, an accuracy or a peak of memory."""

    name: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*\Z")]
    """The name of the metric, such as `p_core`. The manifest of the case lists its metrics."""
    value: Number
    """The value in `unit`."""
    unit: str
    """The unit of the value, such as `samples/s`."""
    scope: Literal["job", "node", "device"]
    """Whether the value is that of the whole job, of one node or of one device."""
    n: PositiveCount | None = None
    """The number of observations from which the value was computed, such as steps, repeats or examples."""
    stdev: Amount | None = None
    """The standard deviation of the observations, in `unit`."""
    ci95: tuple[Number, Number] | None = None
    """The 95 % confidence interval of the value, as its low and its high end in `unit`; null if the run gives
    none."""
    ci_method: str | None = None
    """The method by which the interval was computed."""
    ci_reason: str | None = None
    """Why the run gives no interval."""
    slowest_device: SlowestDevice | None = None
    """The slowest device if the value is the median or mean of several devices. Null for a single device, and if all
    devices produce the value together, as in a collective."""
    note: str | None = None
    """How the value was computed, in words."""


class Check(Struct, frozen=True):
    """One sanity check that the run made of its own results."""

    name: str
    """The name of the check, such as `loss_finite`; docs/read-a-record.md lists the checks."""
    ok: bool
    """Whether the check passed."""
    detail: str
    """The finding of the check, in words."""
    values: dict[str, Number] = {}
    """The numbers that decided the check, by their names in `flagbench_core.checks`."""


class Status(Struct, frozen=True):
    """How the run ended, and in which phase."""

    state: Literal["ok", "failed", "interrupted"]
    """Whether the run completed and is valid (`ok`), failed, or was interrupted."""
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
    """The phase in which the run ended; `done` if it completed."""
    reason: str | None
    """Why the run did not complete, or is not valid; null if it is ok."""
    exit_code: Count
    """The exit code of the run, as docs/exit-codes.md lists them; 0 if it is ok."""
    remedy: str | None = None
    """What the user can do about the failure."""


class Builder(Struct, frozen=True):
    """The version of flagbench that wrote the document."""

    version: str
    """The version of the package."""
    commit: str | None = None
    """The Git commit that the package or the image was built from; null if it is not known."""
    commit_reason: str | None = None
    """Why the commit is not known."""


class Layout(Struct, frozen=True):
    """How the ranks of the job share the model. The product of the three numbers is the number of ranks."""

    dp: PositiveCount
    """The number of data-parallel replicas of the model."""
    tp: PositiveCount
    """The number of tensor-parallel parts that each layer is divided into."""
    pp: PositiveCount
    """The number of pipeline stages that the layers are divided into."""


class Device(Struct, frozen=True):
    """One device of node 0 that the run used."""

    index: Count
    """The index of the device on its node, among the devices of the run."""
    name: str
    """The name of the device model that the driver reports."""
    memory_bytes: Count | None = None
    """The memory of the device in bytes."""
    uuid: str | None = None
    """The UUID of the physical device or of its slice (MIG); null if the driver does not report it."""


class Cpu(Struct, frozen=True):
    """The processors of node 0."""

    model: str | None = None
    """The name of the processor model that the kernel reports."""
    logical: Count | None = None
    """The number of logical processors of the node."""
    usable: Count | None = None
    """The number of logical processors that the run may use. It is smaller than `logical` if the run was pinned, by
    taskset or a cpuset."""


class Image(Struct, frozen=True):
    """The container image that the run was executed in. All digests are null for a native run."""

    context_digest: str | None = None
    """The digest of the source files that the image was built from."""
    digest: str | None = None
    """The digest of the image's manifest, as `REPOSITORY@sha256:...`; the engine's id for an image that was never
    pushed."""
    id: str | None = None
    """The digest of the image's configuration, as `sha256:<64 hex>`. It is the same in an engine with the classic
    image store, in a registry and in a bucket."""
    reason: str | None = None
    """Why the digest is not known."""


class System(Struct, frozen=True):
    """The machines and devices of the run. Facts about a single machine are those of node 0."""

    nodes: PositiveCount
    """The number of nodes."""
    devices_per_node: PositiveCount
    """The number of devices that the run used on each node; on processors, the number of ranks."""
    devices: tuple[Device, ...]
    """The devices of node 0."""
    driver: str | None = None
    """The version of the device driver."""
    versions: dict[str, str] = {}
    """Further versions that a vendor reports separately, by name: for MetaX `mx_smi`, `driver`, `maca` and
    `vbios`."""
    host: str | None = None
    """The name of node 0."""
    kernel: str | None = None
    """The version of the Linux kernel."""
    os: str | None = None
    """The name and version of the distribution, in a container that of the image."""
    cpu: Cpu = Cpu()
    """The processors of node 0."""
    memory_bytes: Count | None = None
    """The memory of node 0 in bytes."""
    nics: tuple[dict[str, Any], ...] = ()
    """The network interfaces of node 0, each with its `name`, its `kind` (`ethernet` or `infiniband`) and, if the
    driver reports it, its `rate`."""
    networks: tuple[str, ...] = ()
    """The networks that NCCL chose for the traffic between nodes: `IB`, `Socket`, or the name of a plugin. Empty if
    its log does not say."""
    image: Image = Image()
    """The container image that the run was executed in."""
    clock_set_seconds: Number | None = None
    """The seconds by which the clock of node 0 was set forward during the run, negative if it was set back; null if
    by less than a second."""


class Software(Struct, frozen=True):
    """The versions and settings of the software that the ranks used."""

    python: str
    """The version of Python."""
    torch: str | None
    """The version of torch; null if no rank started."""
    cuda: str | None = None
    """The version of CUDA that torch was built for."""
    hip: str | None = None
    """The version of HIP that torch was built for, if it was built for ROCm instead of CUDA."""
    cudnn: str | None = None
    """The version of cuDNN."""
    nccl: str | None = None
    """The version of NCCL."""
    packages: dict[str, str] = {}
    """The versions of other installed Python packages that affect a run, by name."""
    lock_digest: str | None = None
    """The digest of the lock file from which the packages of the image were installed."""
    lock_digest_reason: str | None = None
    """Why there is no digest of a lock file."""
    precision: dict[str, Any] | None = None
    """The precision that was requested, torch's settings for TF32, and the precision in which a matmul was executed
    with its relative error."""
    deterministic: bool | None = None
    """Whether torch was set to use deterministic algorithms only."""
    threads: Count | None = None
    """The number of threads of torch's operators on the host, in rank 0."""
    environment: dict[str, str] = {}
    """The environment variables of the ranks that can change a measurement, and those given by --env."""
    stack_expects: dict[str, Any] = {}
    """The versions that the manifest of the stack expects, by package."""


class Timing(Struct, frozen=True):
    """The durations of the phases of the run in seconds, on rank 0 of node 0."""

    init: Amount | None = None
    """The time from the start of the rank, after its imports, to the first step."""
    warmup: Amount | None = None
    """The time of the warm-up steps, which speed metrics leave out."""
    train: Amount | None = None
    """The time of training with its evaluations, without the initial evaluation and without writing checkpoints."""
    data_wait: Amount | None = None
    """The time in which the rank waited for batches, over all steps."""
    step: Amount | None = None
    """The device time of all steps."""
    eval: Amount | None = None
    """The time of the evaluations, without the initial one."""
    e2e: Amount | None = None
    """The time of the whole run without imports, and without writing checkpoints."""
    eval_initial: Amount | None = None
    """The time of the evaluation before the first step."""
    checkpoint: Amount | None = None
    """The time in which checkpoints were written."""
    val: Amount | None = None
    """The time of the validation pass of an inference case."""
    infer: Amount | None = None
    """The time of the inference pass of an inference case."""
    measure: Amount | None = None
    """The time of all measurements of a case without a model."""


class Window(Struct, frozen=True):
    """The steps after the warm-up, from which p_core and the other speed metrics are computed."""

    first_step: Count
    """The number of the first step of the window."""
    steps: Count
    """The number of steps in the window."""
    samples: Count
    """The number of samples in the window, over all ranks."""
    seconds: Amount
    """The sum of the device times of the steps in seconds, on the rank with the largest sum."""
    rank: Count | None = None
    """The rank with the largest sum of device times."""
    host_seconds: Amount | None = None
    """The host time of the steps and of everything between them except evaluations and checkpoints, in seconds, on
    the rank with the largest sum."""
    step_seconds: tuple[Amount, ...] = ()
    """The device time of each step on `rank`, in seconds. A longer window is evenly thinned to 2000 steps."""
    steady: bool | None = None
    """Whether the drift is at most 2 %; null if there are too few steps to tell."""
    drift: Number | None = None
    """The median step time of the second half of the window divided by that of the first half, minus 1."""
    step_median: Amount | None = None
    """The median of the step times, in seconds."""
    step_p5_p95: tuple[Amount, Amount] | None = None
    """The 5th and the 95th percentile of the step times, in seconds."""


class Peak(Struct, frozen=True):
    """The peak throughput of one device in the precision of the run, according to its datasheet."""

    flops: Amount
    """The peak in FLOP/s."""
    precision: str
    """The precision for which the peak holds."""
    source: str
    """The document that states the peak."""


class Ceiling(Struct, frozen=True):
    """The highest throughput of one device that this run measured, with a large matmul."""

    flops: Amount
    """The throughput in FLOP/s, of the slowest rank."""
    precision: str
    """The precision of the matmul."""
    method: str
    """How the throughput was measured, in words."""
    steady: bool | None = None
    """Whether the repeats neither drifted nor scattered; null in records of versions that did not check this."""
    spread: Amount | None = None
    """The standard deviation of the repeats divided by their median, estimated from the median absolute deviation."""


class Flops(Struct, frozen=True):
    """The model FLOPs of the window, summed over all ranks, and the peaks that they are compared with."""

    formula: str
    """The id of the formula in flagbench_core.flops by which FLOPs were counted."""
    executed: Amount
    """The FLOPs that were executed, including those for padding, without recomputation."""
    useful: Amount
    """The FLOPs without those for padding, without recomputation."""
    recomputed: Amount | None = None
    """The FLOPs that the recomputation of activations adds to `executed`."""
    peak: Peak | None = None
    """The peak of one device according to its datasheet; null if it is not known."""
    peak_reason: str | None = None
    """Why the peak is not known."""
    measured_ceiling: Ceiling | None = None
    """The highest throughput of one device that this run measured; null if it measured none."""


class Work(Struct, frozen=True):
    """The work of all steps, summed over all ranks. An inference does not count its validation pass."""

    unit: str
    """The unit in which the case counts its work, `samples` or `tokens`."""
    steps: Count
    """The number of steps."""
    samples_executed: Count
    """The number of samples in the batches."""
    samples_published_count: Count = 0
    """The number of samples as the publisher counts them."""
    tokens_executed: Count | None = None
    """The number of tokens including padding."""
    tokens_useful: Count | None = None
    """The number of tokens without padding."""


class Losses(Struct, frozen=True):
    """The training loss of each step, averaged over replicas."""

    first_step: Count
    """The number of the first step of this run, counted from 0 at the start of training. It is larger than 0 if the
    run resumed from a checkpoint."""
    steps: Count
    """The number of steps of this run."""
    values: tuple[Number | None, ...]
    """The loss of each step in order, of the first 24,000 steps in a longer run; null if the loss is not finite."""


class Quality(Struct, frozen=True):
    """The checks, losses and evaluations of the run."""

    checks: tuple[Check, ...]
    """The sanity checks that the run made."""
    loss_curve: tuple[tuple[Count, Number], ...] = ()
    """Points of the loss curve, each a step and its loss. A longer curve is evenly thinned to 200 points."""
    losses: Losses | None = None
    """The loss of each step; null if the case does not train."""
    evaluations: tuple[dict[str, Any], ...] = ()
    """The evaluations in order, each with its `accuracy`, the number of examples `counted`, its `seconds` and when it
    was made."""
    converged: bool | None = None
    """Whether training reached the published target."""
    resumed: dict[str, Any] | None = None
    """The checkpoint that the run resumed from; null if it did not resume."""
    training: dict[str, Any] | None = None
    """Facts that the case reports at the end of training, such as skipped updates, the loss scale or the bubble of
    the pipeline."""
    absent: dict[str, str] = {}
    """The measurements that could not be made: their names, and the reason of each."""


class SlowDevice(Struct, frozen=True):
    """A device that is slower than the other devices by more than the spread of the measurements explains."""

    rank: Count
    """The rank that used the device."""
    share: Amount
    """The rate of the device divided by the median rate of the other devices: the median over all measurements."""


class Measurement(Struct, frozen=True):
    """One operation without a model, such as a matmul or a copy, repeated on all devices at the same time.

    Rates are in `unit`; the rate of a device is the median of its repeats.
    """

    name: str
    """The name of the measurement, such as `memory_bandwidth`."""
    operation: str
    """The kind of operation: `matmul`, `copy`, or a collective such as `all_reduce`."""
    unit: str
    """The unit of the rates: FLOP/s for matmuls, B/s for all other operations."""
    repeats: PositiveCount
    """The number of repeats that were kept, which are the last ones."""
    steady: bool
    """Whether the repeats neither drift nor scatter on any device."""
    rate: Amount
    """The rate of the device with the median rate (of two devices, the slower one). For a collective, the algorithm
    bandwidth of all devices together."""
    spread: Amount
    """The standard deviation of the repeats of that device divided by their median, estimated from the median
    absolute deviation."""
    stdev: Amount
    """The standard deviation of the repeats of that device, in `unit`."""
    ci95: tuple[Amount, Amount] | None = None
    """The 95 % confidence interval of the rate, as its low and its high end; null if the repeats give none."""
    bus_rate: Amount | None = None
    """The bus bandwidth of a collective in B/s, as nccl-tests defines it; null for other operations."""
    devices: tuple[Amount, ...] = ()
    """The rate of each device in the order of ranks. Empty for a collective, and for more than 64 ranks."""
    precision: str | None = None
    """The precision of a matmul."""
    shape: tuple[PositiveCount, ...] = ()
    """The sizes m, n and k of a matmul of an (m, k) matrix by a (k, n) matrix."""
    transposed: bool | None = None
    """Whether the second matrix of a matmul is stored transposed, as (n, k)."""
    tried: PositiveCount | None = None
    """The number of shapes that were tried, if the measurement is that of the fastest shape."""
    cleared_bytes: PositiveCount | None = None
    """The size in bytes of a buffer that was zeroed before each matmul, to remove the matrices from the caches."""
    heated_seconds: Amount | None = None
    """The seconds of matmuls that heated the device, once in the run, before this measurement; null if the device was
    not heated. If it was, all repeats of this measurement, including those before the kept ones, took at least 1
    s."""
    bytes: PositiveCount | None = None
    """The size in bytes of the array that is copied or that a collective processes."""
    pinned: bool | None = None
    """Whether the host memory of a copy between host and device is pinned."""


class Result(Struct, frozen=True):
    """The results of one fixed operation, computed twice on every device and compared bit by bit."""

    name: str
    """The name of the operation."""
    digests: dict[str, tuple[Count, ...]]
    """The ranks by the digest of their first result. All ranks with the same bits have the same digest."""
    changed: tuple[Count, ...] = ()
    """The ranks whose second result differs from their first."""
    apart: tuple[Count, ...] = ()
    """The ranks whose result differs from that of most devices with the same model and driver. If no result has a
    majority among these devices, all of their ranks."""


class OtherBits(Struct, frozen=True):
    """A fixed operation that gave wrong bits on a rank after a lap of a soak.

    The result differs from that before the laps, or from that of the other devices with the same model and driver.
    """

    name: str
    """The name of the operation."""
    rank: Count
    """The rank with the different result."""


class LapFinding(Struct, frozen=True):
    """A problem in the health of a device, found by `flagbench_core.health.judge` after a lap of a soak."""

    rank: Count
    """The rank that used the device."""
    kind: str
    """The rule that found the problem, such as `xid-79` or `ecc-uncorrected`."""
    outcome: str
    """The severity: FAIL or FIX, after which the soak ends, or INCONCLUSIVE."""
    reason: str
    """The problem in words."""


class Lap(Struct, frozen=True):
    """One lap of a soak. In each lap, all devices repeat the same measurements at the same time."""

    lap: PositiveCount
    """The number of the lap, counted from 1."""
    seconds: Amount
    """The duration of the lap in seconds."""
    rates: dict[str, tuple[Amount, ...]] = {}
    """The median rate of each rank over the lap in FLOP/s or B/s, by the name of the measurement. A collective has
    one rate, its algorithm bandwidth. Measurements that choose the fastest of several shapes are left out. Empty for
    more than 64 ranks."""
    other_bits: tuple[OtherBits, ...] = ()
    """The fixed operations that gave wrong bits after the lap. If there are any, the lap was the last one."""
    health: tuple[LapFinding, ...] | None = None
    """The problems in the health of the devices after the lap. Null if health was not read: on processors, and after
    a reading that did not end in time."""
    counters: dict[str, tuple[Count, ...]] = {}
    """The health counters that rose since the soak began: by the name of the counter, how much it rose on each
    rank."""


class Rank(Struct, frozen=True):
    """One rank of the run, which is one process and uses one device. Times are in seconds."""

    rank: Count
    """The number of the rank in the job, counted from 0."""
    node: Count
    """The number of its node, counted from 0."""
    local_rank: Count | None = None
    """The number of the rank on its node, counted from 0."""
    pid: Count | None = None
    """The id of its process."""
    host: str | None = None
    """The name of its node."""
    uuid: str | None = None
    """The UUID of its device."""
    steps: Count | None = None
    """The number of steps that the rank took."""
    step_median: Amount | None = None
    """The median device time of a step."""
    first_collective_median: Amount | None = None
    """The median time from the start of a step to its first collective; null if it was not measured."""
    collective_wait_median: Amount | None = None
    """The median time in a step that the rank waited for other ranks in collectives; null if it was not measured."""
    data_wait_total: Amount | None = None
    """The time in which the rank waited for batches, over all steps."""
    processors: Count | None = None
    """The number of logical processors that the rank may use."""
    processor_seconds: Amount | None = None
    """The time in which the main thread of the rank ran on a processor during the loop of steps."""
    processor_wait_seconds: Amount | None = None
    """The time in which the main thread was ready to run but waited for a processor during the loop of steps."""
    bubble: Annotated[float, Meta(le=1)] | Annotated[int, Meta(le=1)] | None = None
    """The share of its pipeline's time over the window in which the rank ran no forward or backward pass."""
    exit: str | None = None
    """How the process of the rank ended, in words; null if it ended normally."""


class RankColumns(Struct, frozen=True):
    """The ranks of a job with more than 256 ranks in a compact form. The lists are in the order of ranks or nodes.

    The record's `ranks` additionally lists the ranks that differ from most others.
    """

    ranks: Annotated[int, Meta(ge=1, le=MOST_RANKS)]
    """The number of ranks."""
    hosts: tuple[str | None, ...]
    """The name of each node. All nodes have the same number of ranks."""
    steps: Count
    """The number of steps that most ranks took."""
    exit: str | None = None
    """How the processes of most ranks ended, in words; null if normally."""
    pids: Packed | None = None
    """The id of each rank's process."""
    processor_milliseconds: Packed | None = None
    """The time in which the main thread of each rank ran on a processor, in milliseconds."""
    processor_wait_milliseconds: Packed | None = None
    """The time in which the main thread of each rank waited for a processor, in milliseconds."""


class WindowEnergy(Struct, frozen=True):
    """The energy that one device used in the steps of the window and in the waits between them.

    It does not include the warm-up, evaluations and checkpoints.
    """

    joules: Amount
    """The energy in joules."""
    source: Literal["counter", "power"]
    """Whether the energy was read from the device's own energy counter (`counter`), or integrated over time from
    samples of its power (`power`)."""
    steps: Count
    """The number of steps in which the energy was used."""
    seconds: Amount
    """The time from the start of these steps to their end on the device, in seconds."""
    error_j: Amount | None = None
    """The largest possible error of `joules`, because the counter is interpolated between two readings. Null if the
    energy was integrated from power, whose error is not known."""


class RunHealth(Struct, frozen=True):
    """The health of a device before and after the run: counters of errors, states and links."""

    before: DeviceHealth | None = None
    """The health while the ranks imported modules, before they used the device; null if it was not read."""
    after: DeviceHealth | None = None
    """The health after the last rank had ended; null if it was not read."""


class DeviceTelemetry(Struct, frozen=True):
    """The samples of one device's monitor, summarised over the run. A value that was not measured is null."""

    index: Count | None = None
    """The index of the device on its node, among the devices of the run."""
    name: str | None = None
    """The name of the device model that the monitor reports."""
    throttle_seconds: dict[str, Amount] = {}
    """The seconds in which the clocks were lowered, by reason."""
    foreign_processes: Count = 0
    """The number of processes of other users or runs that used the device before the run."""
    mem_used_before_bytes: Count = 0
    """The memory of the device that was in use before the run, in bytes."""
    mem_used_max_bytes: Count | None = None
    """The largest memory in use in any sample, in bytes."""
    power_mean_w: Number | None = None
    """The mean power in watts."""
    power_max_w: Number | None = None
    """The highest power in any sample, in watts."""
    energy_j: Number | None = None
    """The energy of the whole training or inference in joules, including warm-up, evaluations and checkpoints."""
    energy_seconds: Number | None = None
    """The time that `energy_j` covers, in seconds."""
    window_energy: WindowEnergy | None = None
    """The energy of the window; null if no samples enclose the window, and in records of versions that did not
    measure it."""
    temperature_max_c: Number | None = None
    """The highest temperature in any sample, in degrees Celsius."""
    sm_clock_mean_mhz: Number | None = None
    """The mean clock of the device's processors in MHz."""
    sm_clock_min_mhz: Number | None = None
    """The lowest clock of the device's processors in any sample, in MHz."""
    sm_clock_busy_mhz: Amount | None = None
    """The mean clock of the device's processors in the samples in which it was not idle, in MHz."""
    sm_clock_max_mhz: Amount | None = None
    """The highest clock that the device allows for its processors, in MHz."""
    power_limit_w: Amount | None = None
    """The power limit in force, in watts."""
    power_limit_default_w: Amount | None = None
    """The power limit that the device has by default, in watts."""
    util_mean: Number | None = None
    """The mean utilisation that the monitor reports, from 0 to 1."""
    health: RunHealth | None = None
    """The health of the device before and after the run; null if the monitor cannot identify the device, and in
    records of versions that did not read it."""


class CpuTelemetry(Struct, frozen=True):
    """The use of node 0's processors and memory, summarised over the run. A value that was not measured is null."""

    util_mean: Fraction | None = None
    """The mean share of the logical processors that was busy."""
    others_mean: Amount | None = None
    """The mean number of logical processors that processes outside of the run kept busy."""
    steal_mean: Fraction | None = None
    """The mean share of the logical processors' time that other virtual machines took."""
    quota: Amount | None = None
    """The number of logical processors that the control group of the run may use; null if it is not limited."""
    throttled: Fraction | None = None
    """The share of the quota's periods in which the run used up the quota."""
    mem_used_max_bytes: Count | None = None
    """The largest memory in use on the node in any sample, in bytes."""


class Telemetry(Struct, frozen=True):
    """The samples of node 0's monitor, which reads devices, processors and memory, summarised over the run."""

    devices: tuple[DeviceTelemetry, ...] = ()
    """The summary of each device."""
    cpu: CpuTelemetry = CpuTelemetry()
    """The summary of the processors and the memory."""
    problems: tuple[str, ...] = ()
    """The problems of the monitor: its errors, each once, and whether its samples end before the run does."""
    samples: Count | None = None
    """The number of samples."""
    errors: Count = 0
    """The number of readings that failed."""
    interval_s: Amount | None = None
    """The median time between two samples in seconds; null for fewer than two samples."""
    unavailable: str | None = None
    """Why no device was monitored; null if devices were monitored."""


class BundleDigest(Struct, frozen=True):
    """The bundle of a node: the archive with the raw evidence of its ranks."""

    node: Count
    """The number of the node, counted from 0."""
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    """The sha256 of the archive in hexadecimal."""
    bytes: Count
    """The size of the archive in bytes."""


class Launch(Struct, frozen=True):
    """The launch of the run, as `flagbench run` timed it with the clock of its host."""

    started_at: Time
    """The time at which the run was launched, UTC."""
    seconds: Amount
    """The time from before the process or the container was started until it had ended, in seconds."""
    via: Name
    """The launcher, such as `native` or `docker`."""


class Record(Struct, frozen=True):
    """The record of one run. A metric that was not measured is absent, never NaN, null or 0."""

    VERSION: ClassVar[str] = "record/v1"

    record_id: RecordId
    """The unique id of the record."""
    run_id: RunId
    """The id of the run, which is the same on all nodes of the run."""
    created_at: Time
    """The time at which the record was made, UTC."""
    flagbench: Builder
    """The version of flagbench that executed the run."""
    case: Name
    """The name of the case, which is the workload."""
    stack: Name
    """The name of the stack, which is the software for a family of devices."""
    preset: Literal["reference", "tiny"]
    """The size of the case: `reference` is the published size, `tiny` a small one for trials."""
    division: Literal["faithful"]
    """The rules of the run. `faithful`: it executes the work that the publisher describes."""
    config: dict[str, Any] | None
    """The resolved configuration, which is everything that determined what was executed; null if it could not be
    resolved."""
    config_digest: Digest | None
    """The sha256 of `config` as canonical JSON, which has sorted keys and no spaces."""
    conditions: Mapping[str, Scalar | None]
    """The facts that are compared with the conditions of a claim (a published result), by name; null if a fact is not
    known."""
    system: System
    """The machines and devices of the run."""
    software: Software
    """The versions and settings of the software that the ranks used."""
    timing: Timing
    """The durations of the phases of the run."""
    metrics: tuple[Metric, ...]
    """The measured values of the run."""
    flops: Flops | None
    """The model FLOPs of the window; null if the case does not count FLOPs, or the run ended before the window."""
    work: Work | None
    """The work of all steps; null if the run ended before every rank had finished a step."""
    quality: Quality | None
    """The checks, losses and evaluations; null if the run ended before every rank had finished a step."""
    telemetry: Telemetry | None
    """The summary of node 0's monitor; null if there is none."""
    ranks: tuple[Rank, ...]
    """One entry for each rank. In a document with `rank_columns`, only the ranks that differ from most others."""
    status: Status
    """How the run ended."""
    argv: tuple[str, ...] = ()
    """The arguments of the image's entrypoint, without secrets."""
    bundle: BundleDigest | None = None
    """The bundle of the node that printed the record; null if it wrote none."""
    layout: Layout | None = None
    """How the ranks share the model."""
    window: Window | None = None
    """The steps from which the speed metrics are computed; null if the run ended in its warm-up."""
    measurements: tuple[Measurement, ...] = ()
    """The measurements without a model: of a case that measures the device, or before the steps of a model."""
    slow_devices: tuple[SlowDevice, ...] = ()
    """The devices that are slower than the others in all measurements together."""
    results: tuple[Result, ...] = ()
    """The results of fixed operations, by which devices that compute wrong bits are found."""
    laps: tuple[Lap, ...] = ()
    """The laps that a soak finished. `measurements` has the values of the first lap."""
    rank_columns: RankColumns | None = None
    """The ranks of a job with more than 256 ranks in a compact form."""
    evidence: Evidence | None = None
    """The integers from which the numbers of the record are computed."""
    evidence_digest: Digest | None = None
    """The sha256 of `evidence` as canonical JSON, which has sorted keys and no spaces."""
    evidence_reason: str | None = None
    """Why the record of a large job has no evidence."""
    telemetry_reason: str | None = None
    """Why the record has no telemetry."""
    launch: Launch | None = None
    """The launch of the run; null if `flagbench run` did not launch it, or if the image delivered the record
    itself."""
    raw: dict[str, Any] = {}
    """The whole document, including fields that this class does not have."""

    @property
    def checks(self) -> tuple[Check, ...]:
        """The sanity checks that the run made; empty if the run ended before the first check."""
        if self.quality is None:
            return ()
        return self.quality.checks

    @property
    def day(self) -> str:
        """The day on which the record was made, such as 2026-01-31, UTC."""
        return self.created_at.partition("T")[0]

    @property
    def duration(self) -> float | None:
        """The duration of the run in seconds, without imports; None if nothing was timed.

        For a run that did not reach its end, it is the sum of the phases that were timed.
        """
        timing = self.timing
        seconds = timing.e2e
        if seconds is None:
            phases = (
                timing.init,
                timing.train,
                timing.eval_initial,
                timing.checkpoint,
                timing.val,
                timing.infer,
                timing.measure,
            )
            seconds = math.fsum(phase for phase in phases if phase is not None)
        if seconds <= 0:
            return None
        return float(seconds)

    def metric(self, name: str) -> Metric | None:
        """Find a metric by its name; None if it was not measured."""
        for metric in self.metrics:
            if metric.name == name:
                return metric
        return None
