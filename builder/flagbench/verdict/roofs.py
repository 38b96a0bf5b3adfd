"""Whether the machine is what makes a run slow: its roofs, beside what its device should reach by a baseline, by
published rows or by its datasheet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from flagbench.manifests.model import Case
from flagbench.manifests.rows import Claim
from flagbench.records.model import Metric, Record, SlowestDevice
from flagbench.verdict.result import slowest_device
from flagbench.verdict.subject import Subject, slow_devices
from flagbench_core.evidence.roofs import MAMF, short_roofs
from flagbench_core.evidence.section import MEASURE
from flagbench_core.stats.summary import median

REACHED = 0.67
"""The share of its datasheet's peak that a device's matrix product reaches: FlagPerf measured 79 to 98 % on an A100
(base/benchmarks/computation-*); an H100 and an H200 reached 67 to 69 % in fp16 and bf16, and 72 to 75 % in tf32 and
fp32."""
STEADY = 0.86
"""The share of a product in MAMF's table, a mean of 100, that repeats until steady reach: an H100's in bf16."""
COPIED = 0.75
"""The share of its datasheet's bandwidth: an A100 reached 85 % (main_memory-bandwidth), an H100 91 %."""
LOW_ROOF = 0.9
"""A rate below that share of the expected one is low: two measurements of one processor differ by less."""


class ExpectedRoof(NamedTuple):
    """What a metric should be, in its unit, and who says so."""

    value: float
    source: str


class Roof(Struct, frozen=True, kw_only=True):
    """A measured roof of the runs and the expected one of their device, in the unit of the metric."""

    metric: str
    here: float
    unit: str
    expected: float | None = None
    ratio: float | None = None
    source: str | None = None
    """`the baseline`, a claim, a row of the catalogue, or a share of the datasheet."""
    slowest_device: SlowestDevice | None = None
    """Where `here` was measured on several devices."""


class MachineJudgement(Struct, frozen=True, kw_only=True):
    """Whether the machine is slow, by the roofs of its runs."""

    sound: bool | None
    """None where nothing tells what to expect."""
    roofs: tuple[Roof, ...]
    reason: str
    """What follows, as a clause."""


def judge_machine(
    records: Sequence[Record], case: Case, baseline: Sequence[Record], claims: Sequence[Claim]
) -> MachineJudgement | None:
    """Judge one machine by the roofs of its runs, each the median of the runs; None if the first run has none."""
    if case.kind == MEASURE or not records[0].measurements:
        return None
    roofs = _compare_roofs(records, case, baseline, claims)
    low = [roof for roof in roofs if roof.ratio and roof.ratio < LOW_ROOF]
    problems = _slow_parts(records, low)
    sound: bool | None
    if problems:
        sound, reason = False, f"the machine is slow: {'; '.join(problems)}"
    elif low:
        sound, reason = None, "the low rates were not steady: run again while nothing else uses the machine"
    elif not any(roof.expected for roof in roofs):
        sound, reason = None, "nothing is published for this device: give a --baseline that was run with --roofs"
    else:
        sound, reason = True, "no rate of the machine is low: look at the software and at what differs"
    return MachineJudgement(sound=sound, roofs=tuple(roofs), reason=reason)


def _compare_roofs(
    records: Sequence[Record], case: Case, baseline: Sequence[Record], claims: Sequence[Claim]
) -> list[Roof]:
    """The roofs that the runs measured: matrix product, bandwidth and collective, each with the expected rate."""
    product, best, bandwidth, reduce = short_roofs(str(records[0].conditions.get("precision")))
    if any(record.measurements for record in baseline):
        expected = _expected_of_baseline(baseline, (best, bandwidth, f"{reduce}_busbw"))
    else:
        expected = _expected_of_device(records[0], case, claims)
    roofs = []
    # A publisher's mean is a metric of its own, and comes first where it is expected.
    for mean, rate, unit in (
        (f"{product}_mean", best, "TFLOP/s"),
        (f"{bandwidth}_mean", bandwidth, "GB/s"),
        (f"{reduce}_mean", f"{reduce}_busbw", "GB/s"),
    ):
        measured = [name for name in (mean, rate) if _median(records, name)]
        if not measured:
            continue
        name = measured[-1]
        if mean in measured and mean in expected:
            name = mean
        roofs.append(_roof(records, name, unit, expected.get(name)))
    return roofs


def _roof(records: Sequence[Record], name: str, unit: str, expected: ExpectedRoof | None) -> Roof:
    """The median of a metric over the runs that have it, with the expected rate."""
    metrics = _metrics(records, name)
    rate = median([metric.value for metric in metrics])
    roof = Roof(metric=name, here=rate, unit=unit, slowest_device=slowest_device(metrics))
    if expected is None:
        return roof
    ratio = rate / expected.value if expected.value else None
    return replace(roof, expected=expected.value, ratio=ratio, source=expected.source)


def _slow_parts(records: Sequence[Record], low: Sequence[Roof]) -> list[str]:
    """The low rates that were steady, and the devices that are slower than the others, in words."""
    problems = []
    for roof in low:
        if _is_steady(records, roof):
            problems.append(f"{roof.metric} is {roof.ratio:.0%} of what is expected")
    devices: dict[str, None] = {}
    for record in records:
        devices.update(dict.fromkeys(slow_devices(record)))
    return [*problems, *devices]


def reachable(record: Record, case: Case, claims: Sequence[Claim]) -> ExpectedRoof | None:
    """TFLOP/s of the fastest matrix product of a record's device in its precision; None without a datasheet.

    Some devices reach less of their peak than others: a published product counts where it is below the usual share.
    """
    subject = Subject(record, case)
    if subject.device is None or subject.peak is None:
        return None
    limits = [_share_of("its datasheet", REACHED, subject.peak / 1e12)]
    for claim in claims:
        product = claim.metric(f"{MAMF}_{subject.precision}")
        if product is not None and claim.conditions["device_model"] == subject.device.name:
            limits.append(_share_of(claim.id, STEADY, float(product.value)))
    return min(limits)


def _share_of(source: str, share: float, value: float) -> ExpectedRoof:
    return ExpectedRoof(share * value, f"{share:.0%} of {source}")


def _expected_of_baseline(baseline: Sequence[Record], names: Sequence[str]) -> dict[str, ExpectedRoof]:
    """What the runs of a baseline measured, by metric."""
    expected = {}
    for name in names:
        rate = _median(baseline, name)
        if rate:
            expected[name] = ExpectedRoof(rate, "the baseline")
    return expected


def _expected_of_device(record: Record, case: Case, claims: Sequence[Claim]) -> dict[str, ExpectedRoof]:
    """What the metrics of a record's roofs should be, by its device's datasheet and by rows of this device."""
    device = Subject(record, case).device
    _, best, bandwidth, reduce = short_roofs(str(record.conditions.get("precision")))
    expected = {}
    product = reachable(record, case, claims)
    if product is not None:
        expected[best] = product
    if device is not None and device.limits.memory_bandwidth:
        expected[bandwidth] = _share_of("its datasheet", COPIED, device.limits.memory_bandwidth.value / 1e9)
    for claim in claims:
        for metric in claim.metrics:
            conditions = ["device_model"]
            if metric.name == f"{reduce}_mean":  # of a product or a copy, every device is measured by itself
                conditions += ["devices", "nodes"]
            if all(claim.conditions.get(name) == record.conditions.get(name) for name in conditions):
                expected[metric.name] = ExpectedRoof(float(metric.value), claim.id)
    return expected


def _median(records: Sequence[Record], name: str) -> float | None:
    """The median of a metric over the runs that have it."""
    metrics = _metrics(records, name)
    if not metrics:
        return None
    return median([metric.value for metric in metrics])


def _metrics(records: Sequence[Record], name: str) -> list[Metric]:
    """A metric of the runs that have it."""
    metrics = []
    for record in records:
        metric = record.metric(name)
        if metric is not None:
            metrics.append(metric)
    return metrics


def _is_steady(records: Sequence[Record], roof: Roof) -> bool:
    """Whether the repeats behind a metric were steady in a run."""
    name = roof.metric.removesuffix("_mean").removesuffix("_busbw")
    for record in records:
        for measurement in record.measurements:
            if measurement.name == name and measurement.steady:
                return True
    return False
