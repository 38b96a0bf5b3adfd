"""A printed number with the interval that its digits stand for.

A publisher rounds: `36.5` is anything from 36.45 to 36.55. A rule may only complain about what no value in the
interval explains, so every cell has its interval.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation

BLANK = frozenset(
    (
        *("", "/", "\\", "-", "--", "---", "\u2013", "\u2014", "n/a", "na", "n.a.", "null", "nil", "~", "nan"),
        *("none", "\u65e0", "tbd", "todo", "?", ".", "*", "x"),
    )
)
"""Cells without a value, in lower case."""
UNSTATED = frozenset(
    (
        *("not published", "not stated", "unpublished", "unknown", "undisclosed", "hidden", "withheld"),
        *("\u672a\u516c\u5e03", "\u672a\u77e5", "\u4e0d\u8be6", "\u4fdd\u5bc6"),
    )
)
"""Cells that say that there is a value and that it is withheld, in lower case."""

_CLOCK = re.compile(r"(?:(\d{1,6}):)?(\d{1,3}):(\d{2}(?:\.\d{1,9})?)")
_NUMBER = re.compile(r"[+-]?(?:\d[\d\s,.'_\u2019]*\d|\d|\.\d+|\d+\.)(?:[eE][+-]?\d+)?")
_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
_GROUPED_DOTS = re.compile(r"[+-]?[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?")
_SPREAD = re.compile(r"(?:\u00b1|\+/-|\+-)\s*([\d.,]+)\s*(%?)")
_UNIT = re.compile(r"(?:[/|]\s*[\d.,]+)?\s*([^\W\d_]+)")
_PLACES = re.compile(r"^[~\u2248<>\u2264\u2265=*\u2020\u2021\s]+")


@dataclass(frozen=True)
class Cell:
    """One printed number, and the interval of values that its publisher may have rounded to it."""

    text: str
    """As printed, without what follows it."""
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


def plain(text: object) -> str:
    """A cell's text without Markdown marks, in compatibility form: full-width characters become ASCII."""
    found = unicodedata.normalize("NFKC", str(text)).strip()
    return re.sub(r"^[*`\\]+|[*`]+$", "", found).strip()


def is_blank(text: str) -> bool:
    """Whether a cell has no value, or says that the value is withheld."""
    lowered = plain(text).lower()
    return lowered in BLANK or lowered in UNSTATED


def is_unstated(text: str) -> bool:
    """Whether a cell says that a value is withheld."""
    return plain(text).lower() in UNSTATED


def uses_decimal_comma(texts: list[str]) -> bool:
    """Whether the numbers of a table have a decimal comma: one of them can only be read that way.

    `0,915` and `1942,6` have one; `1,942` may be a thousand, and does not decide.
    """
    found = [match[0] for text in texts if (match := _NUMBER.fullmatch(plain(text).rstrip("%").strip()))]
    has_comma = any(re.fullmatch(r"[+-]?(?:\d+|\d{1,3}(?:\.\d{3})+),\d+", text) for text in found)
    sure = any(
        re.fullmatch(r"[+-]?(?:\d+|\d{1,3}(?:\.\d{3})+),\d+", text) and not _GROUPED.fullmatch(text) for text in found
    )
    points = any(re.fullmatch(r"[+-]?\d+\.\d+", text) and not _GROUPED_DOTS.fullmatch(text) for text in found)
    return has_comma and sure and not points


def unit_of(text: str) -> str:
    """The unit after the number that a cell starts with, as one word; empty without one.

    It is `MiB` in `3.3e4 MiB`, `33.4/40.0 MiB` and `33.4 +- 0.1 MiB`.
    """
    shown = _PLACES.sub("", plain(text))
    match = _NUMBER.match(shown)
    rest = shown[match.end() :].lstrip() if match else ""
    spread = _SPREAD.match(rest)
    behind = _UNIT.match(rest[spread.end() :] if spread else rest)
    return behind[1] if behind else ""


def read_number(text: str, *, decimal_comma: bool = False) -> Cell | None:
    """The number that a cell starts with, or None if it does not start with one.

    Thousands separators (comma, space, apostrophe, underscore), a percent sign (`36.1%` is 0.361), a clock time
    (`1:02:03` is 3723), a spread (`42.4 +- 0.3`) and whatever follows, such as a unit, are understood.

    The interval is half a unit of the last printed digit to both sides, or the printed spread.
    """
    shown = _PLACES.sub("", plain(text))
    if clock := _CLOCK.fullmatch(shown):
        hours, minutes, seconds = clock.groups()
        value = Decimal(hours or 0) * 3600 + Decimal(minutes) * 60 + Decimal(seconds)
        return _cell(shown, value, Decimal(1).scaleb(_exponent(Decimal(seconds))))
    match = _NUMBER.match(shown)
    if match is None:
        return None
    number = _decimal(match[0], decimal_comma=decimal_comma)
    if number is None or not -300 < number.adjusted() < 300:
        return None
    rest = shown[match.end() :].lstrip()
    unit = Decimal(1).scaleb(_exponent(number))
    spread = _SPREAD.match(rest)
    half = None
    if spread and (margin := _decimal(spread[1], decimal_comma=decimal_comma)) is not None:
        half = abs(number) * margin / 100 if spread[2] and not rest.endswith("%%") else margin
        rest = rest[spread.end() :].lstrip()
    percent = rest.startswith("%")
    if percent:
        number, unit = number.scaleb(-2), unit.scaleb(-2)
        half = None if half is None else half.scaleb(-2)
    return _cell(match[0].strip() + "%" * percent, number, unit, half)


def _cell(text: str, value: Decimal, unit: Decimal, half: Decimal | None = None) -> Cell:
    margin = unit / 2 if half is None else max(half, unit / 2)
    return Cell(text, float(value), float(value - margin), float(value + margin), float(unit))


def _exponent(number: Decimal) -> int:
    return int(number.as_tuple().exponent)


def _decimal(text: str, *, decimal_comma: bool) -> Decimal | None:
    text = re.sub(r"[\s'_\u2019]", "", text)
    if decimal_comma:
        text = text.replace(".", "").replace(",", ".") if "," in text or _GROUPED_DOTS.fullmatch(text) else text
    elif _GROUPED.fullmatch(text):
        text = text.replace(",", "")
    elif text.count(",") == 1 and "." in text and text.index(",") > text.rindex("."):
        text = text.replace(".", "").replace(",", ".")  # 1.942,6
    else:
        # A list such as `1764.0, 1861.9` is not one number.
        text = text.replace(",", ".", 1) if text.count(",") == 1 and "." not in text else text
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None
