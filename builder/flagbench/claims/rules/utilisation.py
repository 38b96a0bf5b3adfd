"""Model FLOPs utilisation against the throughput, the FLOPs of the case and the datasheet's peak."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal

from flagbench.claims.finding import Finding
from flagbench.claims.numbers import Cell
from flagbench.claims.rows import Row

COUNTED = 0.01
"""Parts by which two counts of the same FLOPs differ when a publisher rounds the number of parameters."""
_MEANT = 0.10
"""A utilisation closer than that to the publisher's own formula was made by it."""


def at_most_one(row: Row) -> Iterator[Finding]:
    """mfu <= hfu <= 1: a device does no more than its peak, and recomputation only adds to what is executed."""
    mfu, hfu = row.metrics.get("mfu"), row.metrics.get("hfu")
    for name, cell in (("mfu", mfu), ("hfu", hfu)):
        if cell is not None and cell.low > 1:
            yield row.finding(
                name,
                "above-one",
                f"{cell.value:.1%} of the peak is impossible; check the FLOPs, the peak and the devices",
            )
    if mfu is not None and hfu is not None and mfu.low > hfu.high:
        yield row.finding("mfu", "above-hfu", f"mfu {mfu.text} is above hfu {hfu.text}; check which is which")


def follows(row: Row) -> Iterator[Finding]:
    """mfu = rate of a device x FLOPs of a unit / peak, rounded or cut off as printed.

    FLOPs: one of the case's conventions (`work.unit_work`), within COUNTED. Peak: the datasheet's, of the precision
    that the row states; where it states fp32, also of TF32. A value that only the publisher's own formula gives is
    `mfu-formula`: it is no utilisation of this device. One that was made by that formula and misses it is
    `mfu-rounding`, `mfu-truncated` or `mfu-does-not-fit`, and so is one that no formula gives.
    """
    printed, case = row.metrics.get("mfu"), row.case
    if printed is None or printed.value <= 0 or printed.low > 1:
        return
    rate = row.rate_of_device(case.gate)
    if rate is None:
        if row.gate is None:
            yield from _without_rate(row, printed)
        return
    published = _published(row, rate)
    meant = published is not None and abs(printed.value - published) <= _MEANT * published
    standard = _standard(row, rate)
    if any(_matches(printed, low, high) for _, low, high in standard if not (meant and high > low * 1.5)):
        return
    if published is not None and meant:
        yield from _by_formula(row, printed, rate, published)
        return
    if not standard or any(_matches(printed, low, high) for _, low, high in standard):
        return
    text, low, high = min(standard, key=lambda entry: abs(entry[1] - printed.value))
    shown = f"{low:.4g}" if high < low * 1.5 else f"{low:.4g} to {high:.4g}"
    yield row.finding(
        "mfu",
        "mfu-does-not-fit",
        f"{printed.text} does not follow from the speed: {text} = {shown}; check the speed, the devices and the peak",
    )


def _standard(row: Row, rate: Cell) -> list[tuple[str, float, float]]:
    """The utilisations that the case's conventions give: how, the least and the most."""
    work = row.work
    precisions = row.precisions
    if precisions == ("fp32",):
        precisions = ("fp32", "tf32")
    if work is None:
        return []
    found = []
    peaks = {card.peaks[name] for card in row.cards for name in precisions if name in card.peaks}
    for peak in sorted(peaks):
        for name, flops in work.conventions.items():
            how = f"{rate.value:.5g} per device x {flops:.5g} FLOP ({name}) / {peak:.4g}"
            low, high = rate.low * flops / peak, rate.high * flops / peak * work.most
            found.append((how, low * (1 - COUNTED), high * (1 + COUNTED)))
    return found


def _published(row: Row, rate: Cell) -> float | None:
    """What the formula of the case's publisher gives."""
    formula = row.case.published_formula
    if formula is None:
        return None
    return rate.value * formula.flops_per_unit / formula.peak_of(_of_formula(row))


def _of_formula(row: Row) -> str:
    return "tf32" if row.precisions == ("fp32",) else (row.precisions or ("",))[0]


def _matches(printed: Cell, low: float, high: float) -> bool:
    """Whether a computed interval touches the printed one; a cut-off value stands for up to a unit more."""
    return low <= printed.high + printed.unit / 2 and printed.low <= high


def _by_formula(row: Row, printed: Cell, rate: Cell, computed: float) -> Iterator[Finding]:
    formula = row.case.published_formula
    if formula is None:
        return
    peak = formula.peak_of(_of_formula(row))
    how = f"{rate.value:.5g} per device x {formula.flops_per_unit:.5g} FLOP / {peak:.4g} = {computed:.5f}"
    # A float has no further digits, and Decimal.quantize takes no more than 28.
    unit, value = Decimal(f"{max(printed.unit, 1e-12):.6g}"), Decimal(f"{printed.value:.12g}")
    exact = Decimal(f"{computed:.12g}")
    if exact.quantize(unit, ROUND_HALF_UP) != value:
        if exact.quantize(unit, ROUND_DOWN) == value:
            rule, fault = "mfu-truncated", "cut off, not rounded"
        elif abs(value - exact) < unit:
            rule, fault = "mfu-rounding", "rounded up"
        else:
            rule, fault = "mfu-does-not-fit", "not that value"
        yield row.finding("mfu", rule, f"{how}, and {printed.text} is {fault}; compute the cell again")
    work = row.work
    ours = None if work is None else row.peak((_of_formula(row),)) or row.peak(row.precisions)
    right = ""
    if work is not None and ours is not None:
        low, high = (rate.value * work.executed * times / ours[0] for times in (1, work.most))
        right = f"; the case's {work.executed:.4g} FLOP over {ours[1].name}'s {ours[2]} peak give {low:.3f}"
        right += "" if work.most == 1 else f" to {high:.3f}, by the number of choices"
    yield row.finding(
        "mfu",
        "mfu-formula",
        f"{printed.text} follows only from {formula.id}, {how}{right}; state the FLOPs and the peak, or publish that",
    )


def _without_rate(row: Row, printed: Cell) -> Iterator[Finding]:
    case, formula = row.case, row.case.published_formula
    hint = ""
    if formula is not None:
        factor = formula.peak_of(_of_formula(row)) / formula.flops_per_unit
        hint = f" (by {formula.id} it would be {printed.low * factor:.5g} to {printed.high * factor:.5g})"
    yield row.finding(
        "mfu", "unverifiable", f"{printed.text} has no {case.gate} beside it{hint}; publish the speed, too"
    )
