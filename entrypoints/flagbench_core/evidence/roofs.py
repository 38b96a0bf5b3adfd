"""The roofs of a device: the rates of matmuls, copies and collectives that it reaches without a model.

Computes the `measurements` of a record, and its `results` (digests of fixed operations), from what an image measured.
In the evidence, a measurement is a span of repeats whose `measured` describes the operation. A repeat is several
operations one after the other; their number is in its column `samples`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flagbench_core.evidence.columns import MICRO, EvidenceError
from flagbench_core.evidence.document import RecordEvidence, Span
from flagbench_core.stats import summary

PRODUCT = "matmul"
"""The operation of a measurement that multiplies matrices."""
ALL_REDUCE = "all_reduce"
COLLECTIVES = (ALL_REDUCE, "all_gather", "all_to_all")
"""Operations in which all ranks take part. Only records of earlier versions have the last two."""
PUBLISHED_MEANS = frozenset(
    (
        *("matmul_fp64", "matmul_fp32", "matmul_tf32", "matmul_fp16", "matmul_bf16"),
        *("memory_bandwidth", "h2d_pinned", "h2d_pageable", ALL_REDUCE),
    )
)
"""Measurements of which FlagPerf's base/ publishes a mean."""
MAMF = "mamf"
"""The measurement of matmuls as MAMF makes it (mamf-finder.py of stas00/ml-engineering at 744d01e1).

Each matmul is timed by itself, with the caches cleared before it. The result is the mean of MAMF_REPEATS matmuls,
which follow MAMF_WARMUP others.
"""
MAMF_PUBLISHED = "mamf_published"
"""The same measurement, with the matrix shape of the row that MAMF publishes for the device."""
MAMF_WARMUP = 50
MAMF_REPEATS = 100
HEATED_SECONDS = 1.0
"""How long a matmul runs at least before it is measured as MAMF does, if the device is to be heated before.

An idle device is fast for a moment, until its power is limited.
"""
REPEATS = summary.MIN_DRIFT_STEPS
"""The number of repeats in a measurement: the last ones of all that were made."""
DRIFT = 0.02
"""The most by which the medians of the two halves of steady repeats differ, relative."""
SPREAD = 0.05
"""The largest `spread` of steady repeats."""
MOST_LISTED = 64
"""The most devices whose rates a record lists one by one."""
INTERVAL = "order statistics of the median"
"""The `ci_method` of a measurement."""
NORMAL_MAD = 1.4826
"""The standard deviation of a normal distribution over its median absolute deviation."""


def matmul_names(precision: str) -> tuple[str, ...]:
    """The names of the matmul measurements in a precision: the square one, and the best of several shapes."""
    return (f"matmul_{precision}", f"matmul_{precision}_best")


def short_roofs(precision: str) -> tuple[str, ...]:
    """The names of the measurements before the steps of a model (`--roofs`), in the precision of the model."""
    return (*matmul_names(precision), "memory_bandwidth", ALL_REDUCE)


def matmul_flops(m: int, n: int, k: int) -> int:
    """FLOPs of the product of an (m, k) and a (k, n) matrix. A multiply-accumulate counts as 2."""
    return 2 * m * n * k


def copied_bytes(size: int) -> int:
    """Bytes that a copy of `size` bytes within one memory moves: each byte is read once and written once."""
    return 2 * size


def bus_factor(operation: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth of a collective.

    nccl-tests defines both (doc/PERFORMANCE.md, 03a204a1). Algorithm bandwidth is S/t, where S is the size of the
    whole array: in all-gather the array that every rank has in the end, in all-to-all the array that each rank sends.
    """
    passes = 1
    if operation == ALL_REDUCE:  # a reduce-scatter and an all-gather
        passes = 2
    return passes * (ranks - 1) / ranks


def amount(measured: Mapping[str, Any]) -> int:
    """The FLOPs or bytes of one operation, as a span's `measured` describes it: matmuls have FLOPs, others bytes.

    Raises EvidenceError if its shape or its size is missing.
    """
    try:
        if measured["operation"] == PRODUCT:
            m, n, k = measured["shape"]
            return matmul_flops(m, n, k)
        size = int(measured["bytes"])
    except (KeyError, TypeError, ValueError):
        raise EvidenceError(f"an operation has no size: {measured}") from None
    if measured["operation"] == "copy":
        return copied_bytes(size)
    return size


def spread(values: Sequence[float]) -> float:
    """The standard deviation of the values relative to their median; infinite if the median is 0.

    It is estimated from the median absolute deviation, which a few interrupted repeats do not change.
    """
    middle = summary.median(values)
    if not middle:
        return math.inf
    deviation = summary.median([abs(number - middle) for number in values])
    return NORMAL_MAD * deviation / middle


def is_steady(values: Sequence[float], repeats: int | None = None) -> bool:
    """Whether consecutive times, or rates, neither drift nor scatter; False for fewer than REPEATS.

    `repeats`: the number of repeats if the values are of blocks of them, as in the record of a large job.
    """
    if (repeats or len(values)) < REPEATS:
        return False
    half = len(values) // 2
    first = summary.median(values[:half] or values)
    last = summary.median(values[half:])
    if not first:
        return False
    return abs(last / first - 1) <= DRIFT and spread(values) <= SPREAD


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The narrowest interval of order statistics that contains the median with at least 95 %.

    None for fewer than six values, with which no interval does.
    The number of values below the true median is binomial with probability 1/2. So values can be cut off at each end
    as long as its tail keeps at most 2.5 % (Conover, Practical Nonparametric Statistics, 3.2).
    """
    ordered = sorted(values)
    n = len(values)
    cut = 0
    outcomes_cut = 0  # of all 2**n outcomes, those in which the median is among the first `cut` values
    while cut < n // 2:
        outcomes = outcomes_cut + math.comb(n, cut)
        if outcomes / 2**n > 0.025:
            break
        outcomes_cut = outcomes
        cut += 1
    if not cut:
        return None
    return ordered[cut - 1], ordered[n - cut]


class MeasuredOperation(NamedTuple):
    """The rates of an operation that was repeated on all devices; of collectives, that of all devices together."""

    name: str
    described: Mapping[str, Any]
    """The operation with its sizes, as the evidence describes it."""
    unit: str
    """FLOP/s or B/s, the unit of all rates."""
    repeats: int
    steady: bool
    """Whether the repeats neither drift nor scatter on any device."""
    rate: float
    """The rate of the device with the median rate (of two, the slower one); of a collective, of the slowest rank."""
    spread: float
    """The spread of its repeats; see `spread`."""
    stdev: float
    """The standard deviation of its repeats."""
    ci95: tuple[float, float] | None
    """The 95 % interval of `rate`; None if the repeats were not steady or too few."""
    devices: Sequence[float]
    """The rate of each device; empty for a collective."""
    bus_rate: float | None
    """The bus bandwidth of a collective; None for any other operation."""

    @property
    def operation(self) -> str:
        """Such as `matmul`, `copy` or `all_reduce`."""
        return str(self.described["operation"])

    def to_json(self) -> dict[str, Any]:
        """The entry of the record's `measurements`, without the rates of many devices."""
        entry: dict[str, Any] = {
            "name": self.name,
            **self.described,
            "unit": self.unit,
            "repeats": self.repeats,
            "steady": self.steady,
            "rate": self.rate,
            "spread": self.spread,
            "stdev": self.stdev,
            "ci95": self.ci95,
        }
        if self.bus_rate is not None:
            entry["bus_rate"] = self.bus_rate
        elif len(self.devices) > MOST_LISTED:
            entry["devices"] = []
        else:
            entry["devices"] = self.devices
        return entry


def measured_operations(evidence: RecordEvidence) -> list[MeasuredOperation]:
    """The measurements of a run, in order."""
    operations = []
    for span in (*evidence.spans, *evidence.roofs):
        if span.measured is not None:
            operations.append(_measured_operation(span, span.measured, evidence.world))
    return operations


def _measured_operation(span: Span, measured: Mapping[str, Any], world: int) -> MeasuredOperation:
    """One measurement: the rate of each device, and that of the device with the median rate.

    A collective has one rate, that of the rank with the longest time.
    """
    operation = measured["operation"]
    size = amount(measured)
    ranks = list(range(world))
    if operation in COLLECTIVES:
        ranks = [_slowest_rank(span, world)]
    rates = [_rates(span, rank, size) for rank in ranks]
    if not all(rates):
        raise EvidenceError(f"{span.name} took no time")
    medians = [summary.median(device_rates) for device_rates in rates]
    order = sorted(range(len(medians)), key=medians.__getitem__)
    middle = order[(len(order) - 1) // 2]  # of two devices, the slower one
    steady = all(is_steady(device_rates, span.steps) for device_rates in rates)
    unit = "B/s"
    if operation == PRODUCT:
        unit = "FLOP/s"
    ci95 = None
    if steady:
        ci95 = interval(rates[middle])
    devices = medians
    bus_rate = None
    if operation in COLLECTIVES:
        devices = []
        bus_rate = medians[0] * bus_factor(operation, world)
    return MeasuredOperation(
        name=span.phase,
        described=measured,
        unit=unit,
        repeats=span.steps,
        steady=steady,
        rate=medians[middle],
        spread=spread(rates[middle]),
        stdev=summary.stdev(rates[middle]),
        ci95=ci95,
        devices=devices,
        bus_rate=bus_rate,
    )


def _slowest_rank(span: Span, world: int) -> int:
    """The rank whose repeats took the longest together; the first of equals."""
    return max(range(world), key=lambda rank: sum(span.columns["device"][rank]))


def _rates(span: Span, rank: int, size: int) -> list[float]:
    """The rate of each repeat of a rank, FLOP/s or B/s. `size`: the FLOPs or bytes of one operation."""
    repeats = zip(span.columns["samples"][rank], span.columns["device"][rank])
    return [size * count * MICRO / micro for count, micro in repeats if micro]


def compare_results(ranks: Mapping[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The record's `results`: which ranks computed the same bits in each fixed operation.

    Every rank runs each operation twice, with the same input.

    Args:
        ranks: by rank, `first` and `second`, the digests of its two results by the name of the operation, and
            `alike`, a value that is equal for devices of the same model with the same driver.

    Returns:
        An entry for each operation: its `name`; `digests`, the ranks by the digest of their first result; `changed`,
        the ranks whose two results differ; and `apart`, the ranks whose result differs from that of most devices of
        the same model. If no result is that of most of these devices, all of them are `apart`.
    """
    names: dict[str, None] = {}
    for computed in ranks.values():
        names.update(dict.fromkeys((*computed["first"], *computed["second"])))
    return [_compare_result(name, ranks) for name in names]


def _compare_result(name: str, ranks: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """The entry of one operation; see `compare_results`."""
    digests: dict[str, list[int]] = {}
    changed: list[int] = []
    models: dict[Any, dict[str, list[int]]] = {}
    for rank, computed in sorted(ranks.items()):
        first = computed["first"].get(name)
        digest = str(first)
        digests.setdefault(digest, []).append(rank)
        if first != computed["second"].get(name):
            changed.append(rank)
            continue  # it is known to be faulty, so it says nothing about the others
        ranks_by_digest = models.setdefault(computed["alike"], {})
        ranks_by_digest.setdefault(digest, []).append(rank)
    apart: list[int] = []
    for ranks_by_digest in models.values():
        if len(ranks_by_digest) == 1:
            continue
        count = sum(map(len, ranks_by_digest.values()))
        for equal_ranks in ranks_by_digest.values():
            if 2 * len(equal_ranks) <= count:  # not the majority
                apart += equal_ranks
    return {"name": name, "digests": digests, "changed": changed, "apart": sorted(apart)}
