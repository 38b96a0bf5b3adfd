"""Rows copied from another device's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations

from flagbench.claims.cards import same_card
from flagbench.claims.finding import Finding
from flagbench.claims.numbers import Cell
from flagbench.claims.rows import Row

_SPEEDS = (
    "p_core",
    "p_train",
    "p_whole",
    "tokens_per_second_per_device",
    "p_infer_core",
    "p_infer_whole",
    "e2e_time",
)
_DIGITS = 3
"""A value of fewer significant digits is the same by chance."""
_NARROW = 0.002
"""Speeds whose ratios are known to that part of themselves are proportional by no chance."""
_MOST = 400
"""Rows of a case that are compared pair by pair."""


def copied(rows: Sequence[Row]) -> Iterator[Finding]:
    """Two devices do not measure the same digits: of two speeds, or of three metrics of _DIGITS digits or more.

    Nor do all their speeds have one ratio, to within _NARROW, and their times its inverse, with the same accuracy,
    loss or memory to the digit.
    """
    for group in _by_case(rows):
        for one, other in combinations(group[:_MOST], 2):
            if not one.device or not other.device or same_card(one.device, other.device):
                continue
            found = _same(one, other) or _proportional(one, other) or _same_memory(one, other)
            if found is not None:
                yield found


def _by_case(rows: Sequence[Row]) -> list[list[Row]]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.case.name].append(row)
    return list(groups.values())


def _shared(one: Row, other: Row) -> list[str]:
    """Metrics with the same digits in both rows."""
    return [name for name, cell in one.metrics.items() if name in other.metrics and _equal(cell, other.metrics[name])]


def _equal(one: Cell, other: Cell) -> bool:
    return one.value == other.value and min(one.digits, other.digits) >= _DIGITS


def _same(one: Row, other: Row) -> Finding | None:
    shared = _shared(one, other)
    speeds = [name for name in _SPEEDS if name in shared]
    if len(speeds) < 2 and (len(shared) < 3 or not speeds):
        return None
    cells = ", ".join(f"{name} {one.metrics[name].text}" for name in shared)
    return other.finding(
        speeds[0],
        "copied-row",
        f"{cells} are those of {one.name} on {one.device}, to the digit; publish what was measured on {other.device}",
    )


def _proportional(one: Row, other: Row) -> Finding | None:
    names = [name for name in _SPEEDS if name != "e2e_time" and name in one.metrics and name in other.metrics]
    same = [name for name in ("acc", "loss", "mem_peak") if name in _shared(one, other)]
    ratios = [_ratio(one.metrics[name], other.metrics[name]) for name in names]
    if len(names) < 3 or not same:
        return None
    times = [row.metrics["e2e_time"] for row in (other, one) if "e2e_time" in row.metrics]
    if len(times) == 2:
        ratios.append(_ratio(*times))
    elif len(same) < 2:
        return None
    low, high = max(low for low, _ in ratios), min(high for _, high in ratios)
    if low > high or low <= 0 or any(least <= 0 or most / least - 1 > _NARROW for least, most in ratios):
        return None
    return other.finding(
        names[0],
        "copied-row",
        f"{', '.join(names)} are all {(low + high) / 2:.4f} times those of {one.name} on {one.device}, and "
        f"{same[0]} is the same; publish what was measured on {other.device}",
    )


def _ratio(one: Cell, other: Cell) -> tuple[float, float]:
    """The least and the most that `other` may be times `one`."""
    return (other.low / one.high, other.high / one.low) if one.low > 0 else (0.0, float("inf"))


def _same_memory(one: Row, other: Row) -> Finding | None:
    """The same memory to the digit on devices with different memory: libraries and allocators differ."""
    left, right = one.metrics.get("mem_peak"), other.metrics.get("mem_peak")
    if left is None or right is None or not _equal(left, right):
        return None
    if not one.memory_total or not other.memory_total or one.memory_total.value == other.memory_total.value:
        return None
    if one.precisions != other.precisions or one.condition("batch_size") != other.condition("batch_size"):
        return None
    return other.finding(
        "mem_peak",
        "copied-memory",
        f"{right.text} GiB of {other.memory_total.text} is what {one.name} has of {one.memory_total.text} on "
        f"{one.device}, to the digit; check where the value is from",
    )
