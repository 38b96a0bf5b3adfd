"""What a device reaches without a model: matrix products, copies and collectives, each repeated until it is steady.

A measurement is a span of repeats, whose `measured` names the operation. A repeat is several operations one after the
other, which its column `samples` counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from flagbench_core.evidence.columns import MICRO, EvidenceError
from flagbench_core.evidence.section import Section, Span
from flagbench_core.stats import summary

PRODUCT = "matmul"
ALL_REDUCE = "all_reduce"
COLLECTIVES = (ALL_REDUCE, "all_gather", "all_to_all")
"""Operations of all ranks together. The last two are in records of earlier versions."""
PUBLISHED_MEANS = frozenset(
    (
        *("matmul_fp64", "matmul_fp32", "matmul_tf32", "matmul_fp16", "matmul_bf16"),
        *("memory_bandwidth", "h2d_pinned", "h2d_pageable", ALL_REDUCE),
    )
)
"""Measurements of which FlagPerf's base/ publishes a mean."""
MAMF = "mamf"
"""Products as MAMF times them (mamf-finder.py of stas00/ml-engineering at 744d01e1): each by itself, with the caches
cleared before it; the mean of MAMF_REPEATS after MAMF_WARMUP."""
MAMF_PUBLISHED = "mamf_published"
"""The same in the shape of MAMF's row of the device."""
MAMF_WARMUP, MAMF_REPEATS = 50, 100
HEATED_SECONDS = 1.0
"""Of a product timed as MAMF times it on a device that was heated before, at least: an idle device is fast for a
moment, until its power is limited."""
REPEATS = summary.MIN_DRIFT_STEPS
"""The last repeats, of which a measurement is made."""
DRIFT, SPREAD = 0.02, 0.05
"""Of steady repeats, the most by which the medians of their halves differ, and their largest `spread`."""
MOST_LISTED = 64
"""Devices that a record lists one by one."""
INTERVAL = "order statistics of the median"
"""The `ci_method` of a measurement."""


def short_roofs(precision: str) -> tuple[str, ...]:
    """The measurements that a run of a model begins with, if asked: of the products, those of its precision."""
    return (f"matmul_{precision}", f"matmul_{precision}_best", "memory_bandwidth", ALL_REDUCE)


def matmul_flops(m: int, n: int, k: int) -> int:
    """FLOPs of a product of (m, k) by (k, n), a multiply-accumulate counted as 2."""
    return 2 * m * n * k


def copied_bytes(size: int) -> int:
    """Bytes that a copy of `size` bytes within one memory moves: all are read and written."""
    return 2 * size


def bus_factor(operation: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth of a collective, by nccl-tests (doc/PERFORMANCE.md, 03a204a1).

    Algorithm bandwidth is S/t, where S is the whole array: in all-gather that which every rank has in the end, in
    all-to-all that which each rank sends.
    """
    passes = 2 if operation == ALL_REDUCE else 1
    return passes * (ranks - 1) / ranks


def amount(measured: Mapping[str, Any]) -> int:
    """FLOPs or bytes of one operation. Raises EvidenceError if its sizes are missing."""
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
    """The standard deviation of the values relative to their median, from the median absolute deviation (times
    1.4826, as in a normal distribution), which a few interrupted repeats do not change."""
    middle = summary.median(values)
    if not middle:
        return math.inf
    deviation = summary.median([abs(number - middle) for number in values])
    return 1.4826 * deviation / middle


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
    """The narrowest interval of order statistics that contains the median with at least 95 %; None for too few
    values. (Conover, Practical Nonparametric Statistics, 3.2.)"""
    ordered = sorted(values)
    n = len(values)
    cut = below = 0
    while cut < n // 2 and (below + math.comb(n, cut)) / 2**n <= 0.025:
        below += math.comb(n, cut)
        cut += 1
    if not cut:
        return None
    return ordered[cut - 1], ordered[n - cut]


def measurements(section: Section) -> list[dict[str, Any]]:
    """The record's `measurements`, from its evidence; rates in FLOP/s or B/s."""
    measured = []
    for span in (*section.spans, *section.roofs):
        if span.measured is not None:
            measured.append(_measurement(span, span.measured, section.world))
    return measured


def _measurement(span: Span, measured: Mapping[str, Any], world: int) -> dict[str, Any]:
    """One measurement: the rate of each device, and of the middle one.

    A collective has one rate, that of the rank with the longest time.
    """
    size, operation = amount(measured), measured["operation"]
    ranks = [*range(world)]
    if operation in COLLECTIVES:
        ranks = [max(ranks, key=lambda rank: sum(span.columns["device"][rank]))]
    rates = [_rates(span, rank, size) for rank in ranks]
    if not all(rates):
        raise EvidenceError(f"{span.name} took no time")
    medians = [summary.median(device_rates) for device_rates in rates]
    middle = sorted(range(len(medians)), key=medians.__getitem__)[(len(medians) - 1) // 2]
    steady = all(is_steady(device_rates, span.steps) for device_rates in rates)
    measurement = {
        "name": span.phase,
        **measured,
        "unit": "FLOP/s" if operation == PRODUCT else "B/s",
        "repeats": span.steps,
        "steady": steady,
        "rate": medians[middle],
        "spread": spread(rates[middle]),
        "stdev": summary.stdev(rates[middle]),
        "ci95": interval(rates[middle]) if steady else None,
    }
    if operation in COLLECTIVES:
        measurement["bus_rate"] = medians[0] * bus_factor(operation, world)
    else:
        measurement["devices"] = medians
    return measurement


def _rates(span: Span, rank: int, size: int) -> list[float]:
    """The rate of each repeat of a rank; `size`: FLOPs or bytes of one operation."""
    repeats = zip(span.columns["samples"][rank], span.columns["device"][rank])
    return [size * count * MICRO / micro for count, micro in repeats if micro]


def listed(measurement: Mapping[str, Any]) -> dict[str, Any]:
    """A measurement as a record has it: without the rates of many devices."""
    if len(measurement.get("devices", ())) > MOST_LISTED:
        return {**measurement, "devices": []}
    return dict(measurement)


def compare_results(ranks: Mapping[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The record's `results`: the digests of each fixed operation, and the ranks that computed other bits.

    Args:
        ranks: of each rank the digests by operation, `first` and `second`, and `alike`, which is equal for devices
            of one model with one driver.

    `changed` are ranks whose two results differ. `apart` are ranks whose result is not that of most devices alike, or
    all of these where no result is that of most; a changed rank is not compared with others, since it is known to be
    the faulty one.
    """
    names: dict[str, None] = {}
    for computed in ranks.values():
        names.update(dict.fromkeys((*computed["first"], *computed["second"])))
    return [_compare_result(name, ranks) for name in names]


def _compare_result(name: str, ranks: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    digests: dict[str, list[int]] = {}
    changed: list[int] = []
    groups: dict[Any, dict[str, list[int]]] = {}  # of devices alike: their ranks by digest
    for rank, computed in sorted(ranks.items()):
        first = computed["first"].get(name)
        digests.setdefault(str(first), []).append(rank)
        if first != computed["second"].get(name):
            changed.append(rank)
            continue
        groups.setdefault(computed["alike"], {}).setdefault(str(first), []).append(rank)
    apart: list[int] = []
    for by_digest in groups.values():
        if len(by_digest) == 1:
            continue
        count = sum(map(len, by_digest.values()))
        for equal in by_digest.values():
            if 2 * len(equal) <= count:
                apart += equal
    return {"name": name, "digests": digests, "changed": changed, "apart": sorted(apart)}
