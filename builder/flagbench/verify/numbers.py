"""How numbers are written in a verdict: measured to four digits, published as they were printed."""

from __future__ import annotations


def measured(value: float) -> str:
    """A measured value to four significant digits; the integer part is never rounded away."""
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    if abs(value) >= 1_000:
        return f"{value:.0f}"
    return f"{value:#.4g}"


def published(value: float) -> str:
    """A published value with every digit its publisher printed."""
    return f"{value:.15g}"


def ratio(value: float) -> str:
    """A ratio to three decimals, the resolution the limits 0.95 and 1.10 need."""
    return f"{value:.3f}"
