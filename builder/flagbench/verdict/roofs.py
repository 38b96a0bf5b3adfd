"""Judge whether the machine is what makes a run slow, by its roofs.

Roofs are the rates that a device reaches without a model: matrix product, memory bandwidth, all-reduce. A run that
was made with `--roofs` has measured them. Each is compared with the rate of a baseline, of a published row, or with a
usual share of the datasheet's. `explain` adds the judgement to its explanation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from flagbench.manifests.model import Case
from flagbench.manifests.rows import Claim
from flagbench.records.model import Metric, Record, SlowestDevice
from flagbench.verdict.result import slowest_device
from flagbench.verdict.subject import Subject, describe_slow_devices
from flagbench_core.case_kinds import MEASURE
from flagbench_core.evidence.roofs import MAMF, short_roofs
from flagbench_core.stats.summary import median

REACHED = 0.67
"""The share of its datasheet's peak that a device's matrix product reaches: FlagPerf measured 79 to 98 % on an A100
(base/benchmarks/computation-*); an H100 and an H200 reached 67 to 69 % in fp16 and bf16, and 72 to 75 % in tf32 and
fp32."""
STEADY = 0.86
"""The share of a rate in MAMF's table (matrix products, means of 100 repeats) that repeats until steady reach:
measured on an H100 in bf16."""
COPIED = 0.75
"""The share of its datasheet's bandwidth that a device's copy reaches at least: an A100 reached 85 %
(main_memory-bandwidth), an H100 91 %."""
LOW_ROOF = 0.9
"""A rate below this share of the expected one is low: two measurements of one processor differ by less."""
TERA = 1e12
"""FLOP/s of a TFLOP/s."""
GIGA = 1e9
"""Bytes of a GB."""


class ExpectedRoof(NamedTuple):
    """The rate that a roof should have."""

    value: float
    """The rate, in the unit of the metric: TFLOP/s or GB/s."""
    source: str
    """Where it comes from, as it stands in a message: `the baseline`, or `67% of its datasheet`."""


class Roof(Struct, frozen=True, kw_only=True):
    """A measured roof of the runs and the expected one of their device, in the unit of the metric."""

    metric: str
    here: float
    """The measured rate, the median of the runs."""
    unit: str
    expected: float | None = None
    """None if neither a baseline nor a source has the rate of this device."""
    ratio: float | None = None
    """Measured over expected."""
    source: str | None = None
    """Where the expected rate comes from: `the baseline`, a row's id, or a share of the datasheet."""
    slowest_device: SlowestDevice | None = None
    """The slowest of several devices; None if only one was measured."""


class MachineJudgement(Struct, frozen=True, kw_only=True):
    """Whether the machine is slow, by the roofs of its runs."""

    sound: bool | None
    """Whether no rate is low; None if that cannot be said: no rate is expected, or the low ones were not steady."""
    roofs: tuple[Roof, ...]
    reason: str
    """What follows for the search, as a clause."""


def judge_machine(
    records: Sequence[Record], case: Case, baseline: Sequence[Record], claims: Sequence[Claim]
) -> MachineJudgement | None:
    """Judge one machine by the roofs of its runs, each the median of the runs; None if the first run has none."""
    if case.kind == MEASURE or not records[0].measurements:
        return None
    roofs = _compare_roofs(records, case, baseline, claims)
    low = [roof for roof in roofs if roof.ratio and roof.ratio < LOW_ROOF]
    problems = _describe_slow_parts(records, low)
    if problems:
        reason = f"the machine is slow: {'; '.join(problems)}"
        return MachineJudgement(sound=False, roofs=tuple(roofs), reason=reason)
    if low:
        reason = "the low rates were not steady: run again while nothing else uses the machine"
        return MachineJudgement(sound=None, roofs=tuple(roofs), reason=reason)
    if not any(roof.expected for roof in roofs):
        reason = "nothing is published for this device: give a --baseline that was run with --roofs"
        return MachineJudgement(sound=None, roofs=tuple(roofs), reason=reason)
    reason = "no rate of the machine is low: look at the software and at what differs"
    return MachineJudgement(sound=True, roofs=tuple(roofs), reason=reason)


def _compare_roofs(
    records: Sequence[Record], case: Case, baseline: Sequence[Record], claims: Sequence[Claim]
) -> list[Roof]:
    """Return the measured roofs, each with the expected rate: matrix product, memory bandwidth and all-reduce."""
    matmul, best_matmul, bandwidth, all_reduce = short_roofs(str(records[0].conditions.get("precision")))
    if any(record.measurements for record in baseline):
        expected = _expected_of_baseline(baseline, (best_matmul, bandwidth, f"{all_reduce}_busbw"))
    else:
        expected = _expected_of_device(records[0], case, claims)
    roofs = []
    # A roof has two metrics: the mean of repeats that publishers state, and flagbench's own rate. The mean is
    # compared if a publisher states it for this device.
    for mean, rate, unit in (
        (f"{matmul}_mean", best_matmul, "TFLOP/s"),
        (f"{bandwidth}_mean", bandwidth, "GB/s"),
        (f"{all_reduce}_mean", f"{all_reduce}_busbw", "GB/s"),
    ):
        measured = [name for name in (mean, rate) if _median(records, name)]
        if not measured:
            continue
        name = measured[-1]
        if mean in measured and mean in expected:
            name = mean
        roofs.append(_compare_roof(records, name, unit, expected.get(name)))
    return roofs


def _compare_roof(records: Sequence[Record], name: str, unit: str, expected: ExpectedRoof | None) -> Roof:
    """Return the median of a metric over the runs that have it, with the expected rate."""
    metrics = _metrics_named(records, name)
    rate = median([metric.value for metric in metrics])
    roof = Roof(metric=name, here=rate, unit=unit, slowest_device=slowest_device(metrics))
    if expected is None:
        return roof
    ratio = None
    if expected.value:
        ratio = rate / expected.value
    return replace(roof, expected=expected.value, ratio=ratio, source=expected.source)


def _describe_slow_parts(records: Sequence[Record], low: Sequence[Roof]) -> list[str]:
    """Return a clause for each low rate that was steady, and for each device that is slower than the others."""
    problems = []
    for roof in low:
        if _is_steady(records, roof):
            problems.append(f"{roof.metric} is {roof.ratio:.0%} of what is expected")
    devices: dict[str, None] = {}
    for record in records:
        devices.update(dict.fromkeys(describe_slow_devices(record)))
    return [*problems, *devices]


def reachable_matmul(record: Record, case: Case, claims: Sequence[Claim]) -> ExpectedRoof | None:
    """Return the TFLOP/s that the matrix product of a record's device should reach in its precision.

    It is the usual share of the datasheet's peak, or less if a published matrix product of the device is below that:
    some devices reach less of their peak than others. None if no datasheet has the peak.
    """
    subject = Subject(record, case)
    if subject.device is None or subject.peak is None:
        return None
    limits = [_share_of("its datasheet", REACHED, subject.peak / TERA)]
    for claim in claims:
        matmul = claim.metric(f"{MAMF}_{subject.precision}")
        if matmul is not None and claim.conditions["device_model"] == subject.device.name:
            limits.append(_share_of(claim.id, STEADY, float(matmul.value)))
    return min(limits)


def _share_of(source: str, share: float, value: float) -> ExpectedRoof:
    """Return a share of a rate that `source` states, as an expected rate."""
    return ExpectedRoof(share * value, f"{share:.0%} of {source}")


def _expected_of_baseline(baseline: Sequence[Record], names: Sequence[str]) -> dict[str, ExpectedRoof]:
    """Return the rates that the runs of a baseline measured, by metric."""
    expected = {}
    for name in names:
        rate = _median(baseline, name)
        if rate:
            expected[name] = ExpectedRoof(rate, "the baseline")
    return expected


def _expected_of_device(record: Record, case: Case, claims: Sequence[Claim]) -> dict[str, ExpectedRoof]:
    """Return the rates that a record's device should reach, by metric, by its datasheet and published rows."""
    device = Subject(record, case).device
    _, best_matmul, bandwidth, all_reduce = short_roofs(str(record.conditions.get("precision")))
    expected = {}
    matmul = reachable_matmul(record, case, claims)
    if matmul is not None:
        expected[best_matmul] = matmul
    if device is not None and device.limits.memory_bandwidth:
        expected[bandwidth] = _share_of("its datasheet", COPIED, device.limits.memory_bandwidth.value / GIGA)
    for claim in claims:
        for metric in claim.metrics:
            conditions = ["device_model"]
            # An all-reduce depends on the number of devices; other rates are measured on each device by itself.
            if metric.name == f"{all_reduce}_mean":
                conditions += ["devices", "nodes"]
            if all(claim.conditions.get(name) == record.conditions.get(name) for name in conditions):
                expected[metric.name] = ExpectedRoof(float(metric.value), claim.id)
    return expected


def _median(records: Sequence[Record], name: str) -> float | None:
    """Return the median of a metric over the runs that have it; None if no run has it."""
    metrics = _metrics_named(records, name)
    if not metrics:
        return None
    return median([metric.value for metric in metrics])


def _metrics_named(records: Sequence[Record], name: str) -> list[Metric]:
    """Return a metric of each run that has it."""
    metrics = []
    for record in records:
        metric = record.metric(name)
        if metric is not None:
            metrics.append(metric)
    return metrics


def _is_steady(records: Sequence[Record], roof: Roof) -> bool:
    """Whether the repeats behind a metric were steady in at least one run."""
    name = roof.metric.removesuffix("_mean").removesuffix("_busbw")
    for record in records:
        for measurement in record.measurements:
            if measurement.name == name and measurement.steady:
                return True
    return False
