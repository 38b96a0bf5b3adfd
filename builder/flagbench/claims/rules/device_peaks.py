"""What a device can do: its peak, its memory, and the utilisation that follows from a speed."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from flagbench.claims.numbers import Cell
from flagbench.claims.rows import LintFinding, Row
from flagbench.manifests.device_names import NOMINAL
from flagbench.manifests.utilisation import Fit, fit

_RATES = ("p_core", "tokens_per_second_per_device", "p_train", "p_whole", "p_infer_core", "p_infer_whole")
FAULTS = {
    Fit.TRUNCATED: ("mfu-truncated", "cut off, not rounded"),
    Fit.ROUNDED_UP: ("mfu-rounding", "rounded up"),
    Fit.NONE: ("mfu-does-not-fit", "not that value"),
}
"""The rule and the words for a utilisation that its formula does not round to."""
COUNTED = 0.01
"""Parts by which two counts of the same FLOPs differ when a publisher rounds the number of parameters."""
_MEANT = 0.10
"""A utilisation closer than that to the publisher's own formula was made by it."""


def above_peak(row: Row) -> Iterator[LintFinding]:
    """rate of a device x FLOPs of a unit <= the datasheet's peak of the precision that is stated.

    The FLOPs are those of the convention that counts least, so that no choice of it makes a row impossible. A row of
    which TF32 explains the speed is told to say so: `fp32` means TF32 on many machines.
    """
    rates = [name for name in _RATES if name in row.metrics]
    peak, work = row.peak(row.precisions), row.work
    rate = row.rate_of_device(rates[0]) if rates else None
    if rate is None or peak is None or work is None:
        return
    flops, card, precision = peak
    executed = rate.low * work.least
    if executed <= flops:
        return
    done = f"{rate.value:.4g} per device x {work.least:.4g} FLOP = {executed / 1e12:.1f} TFLOP/s"
    above = f"{executed / flops:.0%} of {card.name}'s {precision} peak of {flops / 1e12:g} TFLOP/s"
    tensor = row.peak(("tf32",))
    if precision == "fp32" and tensor is not None and executed <= tensor[0]:
        yield row.finding(
            "precision", "above-peak", f"{done}, {above}: only tf32 can do that; publish what was executed"
        )
    else:
        yield row.finding(
            rates[0], "above-peak", f"{done}, {above}; check the speed, the number of devices and what a unit is"
        )


def memory(row: Row) -> Iterator[LintFinding]:
    """Used memory is at most the total, and both at most the card's. GB is read as GiB, as cards are named."""
    used, total = row.metrics.get("mem_peak"), row.memory_total
    most = max((card.memory_gib for card in row.cards), default=None)
    if total is not None and most is not None and _differs(total.value, [card.memory_gib for card in row.cards]):
        cards = " or ".join(sorted({f"{card.name} has {card.memory_gib:g}" for card in row.cards}))
        yield row.finding(
            "mem_peak",
            "memory-of-another-card",
            f"the cell says {total.text} GiB in all, and {cards} GiB; check the device, or name the partition of it",
        )
    limit = min((value for value in (total.high if total else None, most) if value is not None), default=None)
    if used is not None and limit is not None and used.low > limit:
        yield row.finding(
            "mem_peak",
            "memory-above-card",
            f"{used.value:g} GiB used is more than the {limit:g} GiB there are; check the value and its unit",
        )


def _differs(total: float, sizes: list[float]) -> bool:
    return all(abs(total - size) > NOMINAL * size for size in sizes)


def at_most_one(row: Row) -> Iterator[LintFinding]:
    """mfu <= hfu <= 1: a device does no more than its peak, and recomputation only adds to what is executed."""
    mfu, hfu = row.metrics.get("mfu"), row.metrics.get("hfu")
    for name, cell in (("mfu", mfu), ("hfu", hfu)):
        if cell is not None and cell.low > 1:
            yield row.finding(
                name,
                "above-one",
                f"{cell.text} of the peak is impossible; write a fraction, and check FLOPs, peak and devices",
            )
    if mfu is not None and hfu is not None and mfu.low > hfu.high:
        yield row.finding("mfu", "above-hfu", f"mfu {mfu.text} is above hfu {hfu.text}; check which is which")


def follows(row: Row) -> Iterator[LintFinding]:
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
    formula = case.published_formula
    divisor = _peak_of_formula(row)
    published = rate.value * formula.flops_per_unit / divisor if formula and divisor else None
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
    peaks = {card.flops[name] for card in row.cards for name in precisions if name in card.peaks}
    for peak in sorted(peaks):
        for name, flops in work.conventions.items():
            how = f"{rate.value:.5g} per device x {flops:.5g} FLOP ({name}) / {peak:.4g}"
            low, high = rate.low * flops / peak, rate.high * flops / peak * work.most
            found.append((how, low * (1 - COUNTED), high * (1 + COUNTED)))
    return found


def _of_formula(row: Row) -> str:
    return "tf32" if row.precisions == ("fp32",) else (row.precisions or ("",))[0]


def _peak_of_formula(row: Row) -> float | None:
    """What the publisher divides by, FLOP/s; None without a formula, or where the device's own peak is not known."""
    formula, own = row.case.published_formula, row.peak((_of_formula(row),))
    return None if formula is None else formula.peak_of(_of_formula(row), own and own[0])


def _matches(printed: Cell, low: float, high: float) -> bool:
    """Whether a computed interval touches the printed one; a cut-off value stands for up to a unit more."""
    return low <= printed.high + printed.unit / 2 and printed.low <= high


def _by_formula(row: Row, printed: Cell, rate: Cell, computed: float) -> Iterator[LintFinding]:
    formula, peak = row.case.published_formula, _peak_of_formula(row)
    if formula is None or peak is None:
        return
    how = f"{rate.value:.5g} per device x {formula.flops_per_unit:.5g} FLOP / {peak:.4g} = {computed:.5f}"
    fault = FAULTS.get(fit(Decimal(f"{printed.value:.12g}"), max(printed.unit, 1e-12), computed))
    if fault:
        yield row.finding("mfu", fault[0], f"{how}, and {printed.text} is {fault[1]}; compute the cell again")
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


def _without_rate(row: Row, printed: Cell) -> Iterator[LintFinding]:
    case, formula = row.case, row.case.published_formula
    hint = ""
    if formula is not None and (peak := _peak_of_formula(row)) is not None:
        factor = peak / formula.flops_per_unit
        hint = f" (by {formula.id} it would be {printed.low * factor:.5g} to {printed.high * factor:.5g})"
    yield row.finding(
        "mfu", "unverifiable", f"{printed.text} has no {case.gate} beside it{hint}; publish the speed, too"
    )
