"""A published cell as a number with the digits that its publisher printed."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from flagbench.catalog.model import ClaimMetric


def printed_number(text: str) -> Decimal | None:
    """`36.1%` as 0.361 and `0.0350` as 0.0350, every digit kept; None if the text is not a finite number."""
    try:
        number = Decimal(text.removesuffix("%").strip())
    except InvalidOperation:
        return None
    if not number.is_finite():
        return None
    return number.scaleb(-2) if text.endswith("%") else number


def published_number(metric: ClaimMetric) -> Decimal:
    """A published value with its digits: from the cell as printed where that is kept, else from the value."""
    printed = None if metric.printed is None else printed_number(metric.printed)
    return Decimal(repr(metric.value)) if printed is None else printed
