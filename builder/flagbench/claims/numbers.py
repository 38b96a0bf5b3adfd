"""A printed number with the interval that its digits stand for.

A publisher rounds: `36.5` is anything from 36.45 to 36.55. A rule may only complain about what no value in the
interval explains, so every cell has its interval.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from decimal import Decimal

from flagbench.manifests.printed import printed_number

_MOST_DIGITS = 30
"""Before and after the point; products of such numbers are floats."""


@dataclass(frozen=True)
class Cell:
    """One printed number, and the interval of values that its publisher may have rounded to it."""

    text: str
    """As printed."""
    value: float
    low: float
    high: float
    unit: float
    """The weight of the last printed digit, in the unit of `value`."""

    def scaled(self, factor: float) -> Cell:
        """The same number in another unit. `factor` is positive."""
        return replace(
            self,
            value=self.value * factor,
            low=self.low * factor,
            high=self.high * factor,
            unit=self.unit * factor,
        )

    @property
    def digits(self) -> int:
        """How many significant digits are printed: 4 for `32.70` and `0.03270`."""
        mantissa = re.split("[eE]", self.text)[0]
        return len(re.sub(r"\D", "", mantissa).lstrip("0"))


def read_number(text: str) -> Cell | None:
    """A printed number, with `36.1%` as 0.361; None for other text, and for numbers too large or small to measure.

    The interval is half a unit of the last printed digit to both sides.
    """
    number = printed_number(text)
    if number is None or not -_MOST_DIGITS < number.adjusted() < _MOST_DIGITS:
        return None
    unit = Decimal(1).scaleb(int(number.as_tuple().exponent))
    return Cell(text, float(number), float(number - unit / 2), float(number + unit / 2), float(unit))


def read_count(text: str) -> int | None:
    """The number of things that a text is, from 1 to ten million; None for any other text."""
    return int(text) if re.fullmatch("[1-9][0-9]{0,6}", text) else None
