"""Whether the machine is what makes a run slow: its roofs, beside what its device should reach by a baseline, by
published rows or by its datasheet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

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
    """A roof of the runs beside what is expected of their device, in the unit of the metric."""

    metric: str
    here: float
    unit: str
    expected: float | None = None
    ratio: float | None = None
    source: str | None = None
    """`the baseline`, a claim, a row of the catalogue, or a share of the datasheet."""
    slowest_device: SlowestDevice | None = None
    """Where `here` is of several devices."""


class MachineJudgement(Struct, frozen=True, kw_only=True):
    """What the roofs of the runs say of their machine."""

    sound: bool | None
    """None where nothing tells what to expect."""
    roofs: tuple[Roof, ...]
    reason: str
    """What follows, as a clause."""


def judge_machine(
    records: Sequence[Record], case: Case, baseline: Sequence[Record], claims: Sequence[Claim]
) -> MachineJudgement | None:
    """What the roofs of runs of one machine say, each the median of the runs; None if the first run has none."""
    if case.kind == MEASURE or not records[0].measurements:
        return None
    product, best, bandwidth, reduce = short_roofs(str(records[0].conditions.get("precision")))
    busbw = f"{reduce}_busbw"
    if any(record.measurements for record in baseline):
        found = ((name, _median(baseline, name)) for name in (best, bandwidth, busbw))
        expected = {name: ExpectedRoof(value, "the baseline") for name, value in found if value}
    else:
        expected = dict(_published(records[0], case, claims))
    roofs = []
    # A publisher's mean is a metric of its own.
    for names in ((f"{product}_mean", best), (f"{bandwidth}_mean", bandwidth), (f"{reduce}_mean", busbw)):
        here = {name: value for name in names if (value := _median(records, name))}
        if here:
            name = next((name for name in here if name in expected), [*here][-1])
            value, source = expected.get(name, (None, None))
            roofs.append(
                Roof(
                    metric=name,
                    here=here[name],
                    unit="TFLOP/s" if product in name else "GB/s",
                    expected=value,
                    ratio=here[name] / value if value else None,
                    source=source,
                    slowest_device=slowest_device(_metrics(records, name)),
                )
            )
    low = [roof for roof in roofs if (roof.ratio or 1) < LOW_ROOF]
    slow = [f"{roof.metric} is {roof.ratio:.0%} of what is expected" for roof in low if _is_steady(records, roof)]
    slow += dict.fromkeys(device for record in records for device in slow_devices(record))
    if slow:
        sound, reason = False, f"the machine is slow: {'; '.join(slow)}"
    elif low:
        sound, reason = None, "the low rates were not steady: run again while nothing else uses the machine"
    elif not any(roof.expected for roof in roofs):
        sound, reason = None, "nothing is published for this device: give a --baseline that was run with --roofs"
    else:
        sound, reason = True, "no rate of the machine is low: look at the software and at what differs"
    return MachineJudgement(sound=sound, roofs=tuple(roofs), reason=reason)


def reachable(record: Record, case: Case, claims: Sequence[Claim]) -> ExpectedRoof | None:
    """TFLOP/s of the fastest matrix product of a record's device in its precision; None without a datasheet.

    Some devices reach less of their peak than others: a published product counts where it is below the usual share.
    """
    subject = Subject(record, case)
    if subject.device is None or subject.peak is None:
        return None
    found = [_share_of("its datasheet", REACHED, subject.peak / 1e12)]
    for claim in claims:
        product = claim.metric(f"{MAMF}_{subject.precision}")
        if product is not None and claim.conditions["device_model"] == subject.device.name:
            found.append(_share_of(claim.id, STEADY, float(product.value)))
    return min(found)


def _share_of(source: str, share: float, value: float) -> ExpectedRoof:
    return ExpectedRoof(share * value, f"{share:.0%} of {source}")


def _published(record: Record, case: Case, claims: Sequence[Claim]) -> Iterator[tuple[str, ExpectedRoof]]:
    """What the metrics of a record's roofs should be, by its device's datasheet and by rows of this device."""
    conditions, device = record.conditions, Subject(record, case).device
    _, best, bandwidth, reduce = short_roofs(str(conditions.get("precision")))
    if product := reachable(record, case, claims):
        yield best, product
    if device is not None and device.limits.memory_bandwidth:
        yield bandwidth, _share_of("its datasheet", COPIED, device.limits.memory_bandwidth.value / 1e9)
    for claim in claims:
        for metric in claim.metrics:
            # Of a product or a copy, every device is measured by itself.
            same = ("device_model", *(("devices", "nodes") if metric.name == f"{reduce}_mean" else ()))
            if all(claim.conditions.get(name) == conditions.get(name) for name in same):
                yield metric.name, ExpectedRoof(float(metric.value), claim.id)


def _median(records: Sequence[Record], name: str) -> float | None:
    """The median of a metric over the runs that have it."""
    found = [metric.value for metric in _metrics(records, name)]
    return median(found) if found else None


def _metrics(records: Sequence[Record], name: str) -> list[Metric]:
    """A metric of the runs that have it."""
    return [metric for record in records if (metric := record.metric(name))]


def _is_steady(records: Sequence[Record], roof: Roof) -> bool:
    """Whether the repeats behind a metric were steady in a run."""
    name = roof.metric.removesuffix("_mean").removesuffix("_busbw")
    return any(each.steady for record in records for each in record.measurements if each.name == name)
