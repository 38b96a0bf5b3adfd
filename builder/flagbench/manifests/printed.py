"""A published cell as a number with the digits that its publisher printed."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation


def printed_number(text: str) -> Decimal | None:
    """`36.1%` as 0.361 and `0.0350` as 0.0350, every digit kept; None if the text is not a finite number."""
    try:
        number = Decimal(text.removesuffix("%").strip())
    except InvalidOperation:
        return None
    if not number.is_finite():
        return None
    return number.scaleb(-2) if text.endswith("%") else number
