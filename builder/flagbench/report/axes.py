"""The axes of a chart: which numbers are written on them, and where a number lies in the picture.

An axis of values begins and ends at a round number, the axis of training steps at the first and the last step.
`charts` makes an axis for each direction of a chart, and the template draws it. A picture is 480 units wide with text
of 14, so that it can be read on a phone. Coordinates are rounded, so the same numbers give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from flagbench.verdict.result import number_text

WIDTH = 480
"""Width of a picture. This and the other sizes stand in `templates/charts.j2` and `charts.css`, too."""
HEIGHT = 250
"""Height of a chart with an x and a y axis."""
RIGHT = 470
"""The x coordinate at which a chart with two axes ends."""
TOP = 12
"""The y coordinate at which the content of a picture begins."""
FOOT = 40
"""Room for the x axis at the bottom of a picture."""
_TITLE_HEIGHT = 14
"""Room for the label above a y axis."""
_LEAST_LEFT = 52
"""Least room for the numbers to the left of a y axis."""
_MARK_WIDTH = 8.3
"""Average width of a character of a number on an axis, at most."""
_MARK_MARGIN = 10
"""Room around the numbers to the left of a y axis."""

_SHORTEST = 1e-100
"""An axis covers at least this range, whatever numbers a record has, so that the logarithm of the range exists."""
_FARTHEST = 1e15
"""No axis goes beyond, whatever numbers a record has."""
_TOLERANCE = 1e-9
"""Relative rounding error of an axis: 0.3 / 0.1 counts as 3 steps, and values this close to each other as one."""
_MOST_INTERVALS = 5
"""Most steps that fit into the range of the values.

An axis that begins and ends at a round number can have one interval more.
"""
_MOST_DIGITS = 5
"""Most digits after the point of a number on an axis."""
_UNITS_FROM = 1e5
"""The numbers of an axis have a unit if the largest is at least this; 10,000 is still written out."""


class _Unit(NamedTuple):
    """A unit of the numbers of an axis, such as 1e6 and `M`."""

    factor: float
    letter: str


_UNITS = (_Unit(1e12, "T"), _Unit(1e9, "G"), _Unit(1e6, "M"), _Unit(1e3, "k"))
_NO_UNIT = _Unit(1.0, "")


class Mark(NamedTuple):
    """A number of an axis and the text that is written for it."""

    value: float
    text: str


@dataclass(frozen=True)
class Axis:
    """A straight scale: the number `low` is drawn at the coordinate `begin`, and `high` at `end`."""

    low: float
    high: float
    begin: float
    end: float
    label: str = ""
    marks: tuple[Mark, ...] = ()
    """The numbers that are written on the axis."""

    def at(self, value: float) -> float:
        """The coordinate of a number. A number outside the axis is drawn at its nearer end."""
        value_on_axis = min(max(value, self.low), self.high)
        share = (value_on_axis - self.low) / (self.high - self.low)
        return round(self.begin + share * (self.end - self.begin), 1)


class _Step(NamedTuple):
    """The distance between two numbers of an axis: `factor` times a power of ten."""

    power: float
    factor: float

    @property
    def size(self) -> float:
        """The distance."""
        return self.power * self.factor


def make_axis(values: Sequence[float], begin: float, end: float, label: str = "") -> Axis:
    """Return an axis that covers the values and begins and ends at a round number.

    Zero need not be on the axis; if it is not, the label states the range.
    """
    lowest = _within_reach(min(values))
    highest = _within_reach(max(values))
    largest = max(abs(lowest), abs(highest))
    step = _choose_step(highest - lowest, largest)
    first = math.floor(lowest / step.size + _TOLERANCE)
    last = math.ceil(highest / step.size - _TOLERANCE)
    if first == last:
        last += 1
    marks = _make_marks(first, last, step, _unit_of(largest))
    if first > 0 or last < 0:
        label = f"{label} (axis from {marks[0].text} to {marks[-1].text})"
    return Axis(first * step.size, last * step.size, begin, end, label, marks)


def _within_reach(number: float) -> float:
    return min(max(number, -_FARTHEST), _FARTHEST)


def _choose_step(spread: float, largest: float) -> _Step:
    """Return the smallest round step that divides a range into at most _MOST_INTERVALS parts.

    Args:
        spread: the difference of the highest and the lowest value.
        largest: the largest magnitude of a value. It is the range of equal values, or 1 if they are 0.
    """
    if spread <= max(largest * _TOLERANCE, _SHORTEST):
        spread = 1.0
        if largest > _SHORTEST:
            spread = largest
    # No smaller step is possible: the next one, half of this power, divides the range into at least 8 parts.
    power = 10.0 ** math.floor(math.log10(spread / 4))
    for factor in (1, 2, 2.5, 5):
        if spread / (power * factor) <= _MOST_INTERVALS:
            return _Step(power, factor)
    return _Step(power, 10)


def _unit_of(largest: float) -> _Unit:
    """Return the unit of the numbers of an axis whose largest number is `largest`; _NO_UNIT for small numbers."""
    for unit in _UNITS:
        if largest >= max(unit.factor, _UNITS_FROM):
            return unit
    return _NO_UNIT


def _make_marks(first: int, last: int, step: _Step, unit: _Unit) -> tuple[Mark, ...]:
    """Return the numbers of an axis from `first` to `last` steps, all with as many digits as the step needs."""
    digits = -math.floor(math.log10(step.size / unit.factor))
    if step.factor == 2.5:
        digits += 1  # the second digit of 2.5
    digits = max(0, digits)
    marks = []
    for number in range(first, last + 1):
        value = number * step.size
        text = number_text(value)
        if digits <= _MOST_DIGITS:
            text = f"{value / unit.factor:,.{digits}f}{unit.letter}"
        marks.append(Mark(value, text))
    return tuple(marks)


def make_step_axis(first: int, last: int, begin: float) -> Axis:
    """Return the x axis of the training steps `first` to `last`.

    Its numbers are multiples of a whole distance: 1 or 2 times a power of ten. `_choose_step` cannot choose it, since
    its steps may be 2.5 or less than 1.
    """
    length = last - first
    distance = 10 ** math.floor(math.log10(max(1, length)))
    if length / distance <= 2 and distance > 1:
        distance //= 5
    elif length / distance > _MOST_INTERVALS:
        distance *= 2
    first_mark = -(-first // distance) * distance  # rounded up
    marks = tuple(Mark(step, f"{step:,}") for step in range(first_mark, last + 1, distance))
    return Axis(first, max(last, first + 1), begin, RIGHT, "step", marks)


def make_value_axis(values: Sequence[float], label: str) -> Axis:
    """Return the y axis of a chart with two axes: larger values are higher up."""
    return make_axis(values, HEIGHT - FOOT, TOP + _TITLE_HEIGHT, label)


def left_of_chart(y: Axis) -> float:
    """Return the x coordinate at which a chart begins, so that the numbers to the left of its y axis fit."""
    longest = max(len(mark.text) for mark in y.marks)
    return max(_LEAST_LEFT, round(_MARK_MARGIN + _MARK_WIDTH * longest))
