"""How numbers are written in a verdict: measured to four digits, published as they were printed."""

from __future__ import annotations

from flagbench.verify.interval import Estimate, Ratio


def measured(value: float) -> str:
    """A measured value to four significant digits; the integer part is never rounded away."""
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    if abs(value) >= 1_000:
        return f"{value:.0f}"
    return f"{value:#.4g}"


def estimate_text(estimate: Estimate, unit: str = "") -> str:
    """`1510 samples/s [1490, 1530]`; a published value has every digit that its publisher printed."""
    if not estimate.runs:
        return f"{estimate.value:.15g}"
    text = f"{measured(estimate.value)} {unit}".rstrip()
    return text if estimate.ci95 is None else f"{text} [{', '.join(map(measured, estimate.ci95))}]"


def ratio_text(ratio: Ratio) -> str:
    """`0.777 [0.767, 0.788]`: three decimals, the resolution that the limits 0.95 and 1.10 need."""
    text = f"{ratio.value:.3f}"
    return text if ratio.ci95 is None else f"{text} [{ratio.ci95[0]:.3f}, {ratio.ci95[1]:.3f}]"
