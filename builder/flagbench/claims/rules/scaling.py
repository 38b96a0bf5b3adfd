"""Scaling: more devices do more work, but none does more than it does alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flagbench.claims.finding import Finding
from flagbench.claims.numbers import Cell
from flagbench.claims.rows import Row

TOLERANCE = 1.01
"""Two runs differ by about as much without any reason."""
_CORE = ("p_core", "tokens_per_second_per_device", "p_infer_core")
_OTHER = ("p_train", "p_whole", "p_infer_whole")
"""Compared only where a row has none of _CORE: what they include besides need not grow with the devices."""
_SAME = (
    "batch_size",
    "sequence_length",
    "gradient_accumulation_steps",
    "choices",
    "recompute",
    "attention",
    "dropout",
)
"""Conditions that decide how much work a device has for each sample."""
_STATED = ("division", "torch", "cuda", "driver")
"""Two rows that state one of them differently say nothing of each other."""


def scaling(rows: Sequence[Row]) -> Iterator[Finding]:
    """A device's share p(m) / m with m devices is at most p(n) / n x TOLERANCE with n < m, of the same case, device,
    precision and settings. Only the fastest smaller row is named.
    """
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if row.devices and row.device:
            groups.setdefault(_work(row), []).append(row)
    for group in groups.values():
        for row in group:
            smaller = [other for other in group if (other.devices or 0) < (row.devices or 0) and _alike(row, other)]
            for name in _CORE if any(name in row.metrics for name in _CORE) else _OTHER:
                share = row.rate_of_device(name)
                shares = [
                    (cell, other)
                    for other in smaller
                    if (cell := other.rate_of_device(name)) is not None and _one_length(name, row, other)
                ]
                if share is not None and shares:
                    yield from _above(row, name, share, *max(shares, key=lambda pair: pair[0].high))


def _alike(row: Row, other: Row) -> bool:
    """Whether two rows state no different software or division."""
    pairs = ((row.conditions.get(name), other.conditions.get(name)) for name in _STATED)
    return all(one == two for one, two in pairs if one and two)


def _one_length(name: str, row: Row, other: Row) -> bool:
    """Whether two runs end by the same rule, on which all speeds but the core ones depend."""
    return "core" in name or row.conditions.get("stop_rule") == other.conditions.get("stop_rule")


def _above(row: Row, name: str, share: Cell, best: Cell, other: Row) -> Iterator[Finding]:
    if share.low > best.high * TOLERANCE:
        yield row.finding(
            name,
            "scaling",
            f"{share.value:.4g} on each of {row.devices} devices is {share.value / best.value:.1%} of {other.name}'s "
            f"{best.value:.4g} on each of {other.devices}; check both speeds and their numbers of devices",
        )


def _work(row: Row) -> tuple[object, ...]:
    cards = tuple(card.name for card in row.cards) or (row.device.lower(),)
    layout = row.conditions.get("layout", "") if "layout" in row.case.work_conditions else ""
    settings = tuple(row.condition(name) for name in _SAME)
    return (row.case.name, cards, row.precisions, settings, layout, row.publication.superseded)
