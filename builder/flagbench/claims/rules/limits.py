"""What a device can do: its peak, its memory."""

from __future__ import annotations

from collections.abc import Iterator

from flagbench.claims.finding import Finding
from flagbench.claims.rows import Row

_NOMINAL = 0.05
"""Tools print up to so much less than the memory a card is sold with."""
_RATES = ("p_core", "tokens_per_second_per_device", "p_train", "p_whole", "p_infer_core", "p_infer_whole")


def above_peak(row: Row) -> Iterator[Finding]:
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


def memory(row: Row) -> Iterator[Finding]:
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
    return all(abs(total - size) > _NOMINAL * size for size in sizes)
