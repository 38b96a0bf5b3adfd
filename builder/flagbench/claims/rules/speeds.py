"""Speeds of rows against each other: in order, no more by a larger job, without padding, and not another device's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

from flagbench.claims.numbers import Cell
from flagbench.claims.rows import LintFinding, Row
from flagbench.manifests.device_names import same_card

_ORDERS = (
    ("p_core", "p_train", "p_whole"),
    ("p_infer_core", "p_infer_whole"),
    ("p_val_core", "p_val_whole"),
)
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
_WHOLE = 0.8
"""Part of a run's time in which it works at least; the rest is its start."""
_DIGITS = 3
"""A value of fewer significant digits is the same by chance."""
_MOST = 400
"""Rows of a case that are compared pair by pair."""


def rates_in_order(row: Row) -> Iterator[LintFinding]:
    """p_core >= p_train >= p_whole, and the same for inference and validation: each divides the same samples by more
    of the run's time. A pair is in order if any two values of their intervals are.
    """
    for order in _ORDERS:
        present = [name for name in order if name in row.metrics]
        for faster, slower in pairwise(present):
            one, other = row.metrics[faster], row.metrics[slower]
            if one.high < other.low:
                yield row.finding(
                    faster,
                    "rates-in-order",
                    f"{faster} {one.text} is below {slower} {other.text}, and it leaves out more of the time; "
                    "look for exchanged cells or for rows of different runs",
                )


def positive(row: Row) -> Iterator[LintFinding]:
    """No speed, time, utilisation, accuracy or memory is zero or negative: launchers print -1 for what they lack."""
    for name, cell in row.metrics.items():
        if not _is_possible(name, cell):
            yield row.finding(
                name,
                "not-positive",
                f"{cell.text} is no measurement; publish the measured value, or leave the cell empty",
            )


def measured(row: Row) -> Row:
    """The row without the values that `positive` finds."""
    return replace(row, metrics={name: cell for name, cell in row.metrics.items() if _is_possible(name, cell)})


def _is_possible(name: str, cell: Cell) -> bool:
    return cell.value > 0 or name == "loss" or (name == "acc" and cell.value == 0)


def scaling(rows: Sequence[Row]) -> Iterator[LintFinding]:
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


def _above(row: Row, name: str, share: Cell, best: Cell, other: Row) -> Iterator[LintFinding]:
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
    return (row.case.name, cards, row.precisions, settings, layout)


def padding_counted(row: Row) -> Iterator[LintFinding]:
    """Tokens/s of a padded set: rate x e2e_time against examples x padded length.

    A set counted without padding is much smaller than examples x length, so a run that counts nearly all of that in
    its time includes padding. Applies to cases whose manifest names the quirk `padding-counted`.
    """
    case = row.case
    if all(quirk.id != "padding-counted" for quirk in case.quirks):
        return
    data = case.presets["reference"]["data"]
    rate = row.metrics.get("p_infer_whole") or row.metrics.get("p_infer_core")
    time, examples = row.metrics.get("e2e_time"), data.get("examples")
    length = row.number_of("sequence_length") or data["sequence_length"]
    if rate is None or time is None or not examples:
        return
    padded = examples * length
    if rate.value * time.value >= _WHOLE * padded:
        field = case.gate if case.gate in row.metrics else "p_infer_whole"
        yield row.finding(
            field,
            "padding-counted",
            f"{rate.text} tokens/s x {time.text} s are {rate.value * time.value:,.0f} tokens, and {examples:,} "
            f"examples padded to {length:,.0f} are {padded:,.0f}: padding is counted; count the tokens without it",
        )


def copied(rows: Sequence[Row]) -> Iterator[LintFinding]:
    """Two devices do not measure the same digits: of two speeds, or of three metrics of _DIGITS digits or more.

    Nor do they use the same memory to the digit where they have different memory: libraries and allocators differ.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.case.name, []).append(row)
    for group in groups.values():
        for one, other in combinations(group[:_MOST], 2):
            if one.device and other.device and not same_card(one.device, other.device):
                yield from _copied(one, other)


def _copied(one: Row, other: Row) -> Iterator[LintFinding]:
    cells = {name: (cell, other.metrics[name]) for name, cell in one.metrics.items() if name in other.metrics}
    shared = [n for n, (a, b) in cells.items() if a.value == b.value and min(a.digits, b.digits) >= _DIGITS]
    speeds = [name for name in (*_CORE, *_OTHER, "e2e_time") if name in shared]
    left, right = one.memory_total, other.memory_total
    if len(speeds) > 1 or (len(shared) > 2 and speeds):
        digits = ", ".join(f"{name} {one.metrics[name].text}" for name in shared)
        yield other.finding(
            speeds[0],
            "copied-row",
            f"{digits} are those of {one.name} on {one.device}, to the digit; publish what was measured here",
        )
    elif (
        "mem_peak" in shared
        and left is not None
        and right is not None
        and left.value != right.value
        and one.precisions == other.precisions
        and one.condition("batch_size") == other.condition("batch_size")
    ):
        yield other.finding(
            "mem_peak",
            "copied-memory",
            f"{other.metrics['mem_peak'].text} GiB of {right.text} is what {one.name} has of {left.text} on "
            f"{one.device}, to the digit; check where the value is from",
        )
