"""The interval of a rate within one run: batch means with Student's t, and the gate before it.

The rate of a window is R = sum(amounts) / sum(seconds). To first order its error is that of the sum of the residuals
e = amount - R x seconds, over sum(seconds) (Cochran, Sampling Techniques, 3rd edition, 2.11). Steps are correlated,
so the variance of that sum is taken from a few long batches of consecutive steps, which are nearly independent, with
Student's t for their number (Schmeiser, Operations Research 30, 1982; Law, Simulation Modeling and Analysis, 9.5.3).

That is only right for a stationary window that is long compared with its correlation. The gate refuses others:

  short        fewer than MIN_STEPS steps: what happens once in a hundred steps may not have happened; or, of long
               steps, fewer than LONG_STEPS or LONG_SECONDS
  warm-up      its first part is slower than the rest
  trend        its rate rises or falls from the first batch to the last
  states       it jumps between two levels, such as two clocks, too rarely to weigh them
  correlated   fewer than MIN_EFFECTIVE independent values, by the integrated autocorrelation time

A trend or a warm-up that is too small to refuse a window widens the interval by its size. If one step is so slow that
all others would be accepted, that step is the reason, whatever it looked like: a run that was stopped or disturbed.

A window of few long steps, or of few blocks of steps, shows nothing of its correlation: if it passes, it has neither
an interval nor a refusal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from operator import mul, ne
from typing import NamedTuple

from flagbench_core.stats.student import t_quantile, t_two_sided
from flagbench_core.stats.summary import stdev

LEVEL = 0.95
MIN_STEPS = 100
LONG_STEPS, LONG_SECONDS = 20, 100.0
"""A window of fewer steps is long enough from these on: it has as many samples of a monitor, one a second, as others
have steps."""
MIN_VALUES = 30
"""Blocks of steps of which an interval is computed: the evidence of a large job has fewer."""
MIN_EFFECTIVE = 20.0
FEWEST_BATCHES, MOST_BATCHES = 10, 20
EFFECTIVE_PER_BATCH = 5.0
ALPHA = 0.005
"""Of each test of the gate, so that few stationary windows are refused."""
POSSIBLE = 0.1
"""Of the test for a trend that is only possible, and widens the interval."""
RESOLUTION = 1e-6
"""Seconds: times in the evidence are whole microseconds, so levels that are not further apart may be rounding."""
MIN_CHANGES = 20
"""Between the two levels of a window."""
SEPARATION = 4.0
"""Two levels are this number of standard deviations apart; the halves of a normal distribution are 2.6 apart."""
TOLERATED = 0.005
"""The largest change of the rate, relative, that widens the interval and does not refuse the window."""
METHOD = "within-run batch means, Student t"
"""The `ci_method` of a record."""
STALL = 10.0
"""How many times the median a step takes that may be the only reason."""
_ROUNDING = 1e-12
_LARGEST, _SMALLEST = 1e100, 1e-100
"""Neither sums nor rates of such values overflow."""
_POINTS = 400
"""Longer windows are summed to this many values before their correlation is computed."""


class Refusal(NamedTuple):
    """Why a window gives no interval."""

    kind: str
    """`short`, `correlated`, `warm-up`, `trend`, `states`, `stall` or `data`."""
    text: str
    further_steps: int
    """How many more steps would probably give one; 0 if none would."""

    def __str__(self) -> str:
        if not self.further_steps:
            return self.text
        steps = f"about {self.further_steps:,} more steps"
        if self.further_steps == 1:
            steps = "1 more step"
        return f"{self.text}; {steps} would decide"


class WithinRun(NamedTuple):
    """The interval of a rate over a window, or why there is none; neither if there are too few values."""

    interval: tuple[float, float] | None
    refusal: Refusal | None


def within_run(amounts: Sequence[float], seconds: Sequence[float], steps: int | None = None) -> WithinRun:
    """The interval of the rate sum(amounts) / sum(seconds) over consecutive steps, or why the window gives none.

    Args:
        amounts: the work of each step, or of each block of consecutive steps.
        seconds: the time of each.
        steps: how many steps they are, if they are blocks.

    Raises:
        ValueError: the two are not of one length.
    """
    if len(amounts) != len(seconds):
        raise ValueError(f"{len(amounts)} amounts and {len(seconds)} times are not of the same steps")
    n = len(seconds)
    if steps is None:
        steps = n
    short = Refusal("short", f"the window of {steps:,} steps is shorter than {MIN_STEPS}", MIN_STEPS - steps)
    if steps < LONG_STEPS:
        return WithinRun(None, short)
    if not (_is_usable(amounts) and _is_usable(seconds)):
        text = "its times and amounts are not all numbers of 0 or more, with a positive sum"
        return WithinRun(None, Refusal("data", text, 0))
    work, total = math.fsum(amounts), math.fsum(seconds)
    if steps < MIN_STEPS and total < LONG_SECONDS:
        return WithinRun(None, short)
    relative = [n * (amount / work - time / total) for amount, time in zip(amounts, seconds)]
    if n < FEWEST_BATCHES:
        return WithinRun(None, None)
    if n < MIN_VALUES or steps < MIN_STEPS:
        return WithinRun(None, _unsettled(_means(relative, FEWEST_BATCHES), steps))
    points = min(n, _POINTS)
    values = _means(relative, points)
    effective = points / _correlation_without_trend(relative, values)
    batches = max(FEWEST_BATCHES, min(MOST_BATCHES, int(effective / EFFECTIVE_PER_BATCH)))
    means = _means(relative, batches)
    refusal, wider = _gate(means, values, effective, steps, RESOLUTION * points / total)
    if refusal is not None:
        if steps == n:
            refusal = _stall(amounts, seconds) or refusal
        return WithinRun(None, refusal)
    # The standard error of the mean: from the batches, or from the correlation if that is larger.
    error = max(stdev(means) / math.sqrt(batches), stdev(values) / math.sqrt(effective))
    rate = work / total
    half = rate * (t_two_sided(LEVEL, batches - 1) * error + wider)
    return WithinRun((rate - half, rate + half), None)


def _is_usable(values: Sequence[float]) -> bool:
    """Whether all values are finite and not negative, with a sum that is neither too small nor too large."""
    return min(values) >= 0 and max(values) < _LARGEST and math.fsum(values) > _SMALLEST


def _correlation_without_trend(relative: Sequence[float], values: Sequence[float]) -> float:
    """The correlation time of `values`. A small trend is accounted for by itself: it must not pass for one."""
    trend = _trend(_means(relative, FEWEST_BATCHES), POSSIBLE)
    if abs(trend) <= TOLERATED:
        values = _without_trend(values, trend)
    return correlation_time(values)


def _stall(amounts: Sequence[float], seconds: Sequence[float]) -> Refusal | None:
    """The slowest step as the reason for a refusal; None if it is not, or other steps are nearly as slow."""
    slowest = max(range(len(seconds)), key=seconds.__getitem__)
    median = sorted(seconds)[len(seconds) // 2]
    other_amounts = [*amounts[:slowest], *amounts[slowest + 1 :]]
    other_seconds = [*seconds[:slowest], *seconds[slowest + 1 :]]
    if seconds[slowest] < STALL * median or max(other_seconds) >= STALL * median:
        return None
    others = within_run(other_amounts, other_seconds, max(MIN_STEPS, len(other_seconds)))
    if others.interval is None:
        return None
    text = (
        f"step {slowest + 1:,} of its window took {seconds[slowest]:.3g} s, {seconds[slowest] / median:,.0f} times "
        "the median, and the others are steady; run it again undisturbed"
    )
    return Refusal("stall", text, 0)


def _gate(
    means: Sequence[float], values: Sequence[float], effective: float, steps: int, resolution: float
) -> tuple[Refusal | None, float]:
    """Why a window gives no interval; else by how much the interval is widened for a change too small to refuse it.

    Args:
        means: the deviation of each batch's rate from the window's, relative.
        values: the same of each step, or of blocks of steps.
        effective: how many of these are independent.
        resolution: of these, relative.
    """
    refusal = _unsettled(means, steps)
    if refusal is not None:
        return refusal, 0.0
    states = _states(values, resolution)
    if states is not None and states.changes < MIN_CHANGES:
        text = (
            f"its rate switches between two levels {states.apart:.1%} apart, too few times for an interval "
            f"({states.changes}; at least {MIN_CHANGES} are needed)"
        )
        return Refusal("states", text, _further(steps, MIN_CHANGES / states.changes)), 0.0
    if effective < MIN_EFFECTIVE:
        text = (
            f"its {steps:,} steps are correlated and worth only {effective:.0f} independent ones: at least "
            f"{MIN_EFFECTIVE:.0f} are needed"
        )
        return Refusal("correlated", text, _further(steps, MIN_EFFECTIVE / effective)), 0.0
    return None, max(_warm_up(means).lowers, abs(_trend(means, POSSIBLE)))


def _unsettled(means: Sequence[float], steps: int) -> Refusal | None:
    """Why a window is not one of settled steps, by the deviation of each batch's rate from the window's, relative."""
    warm_up = _warm_up(means)
    if warm_up.lowers > TOLERATED:
        length = math.ceil(steps * warm_up.share)
        text = f"its first {length:,} steps are warm-up, {warm_up.lowers / warm_up.share:.1%} slower than the window"
        return Refusal("warm-up", text, _further(steps, warm_up.lowers / TOLERATED))
    change = _trend(means, ALPHA)
    if abs(change) > TOLERATED:
        text = f"its rate changes by {change:+.1%} of its mean from the beginning to the end, so it has not settled"
        return Refusal("trend", text, steps)
    return None


def _further(steps: int, times: float) -> int:
    """How many more steps make a window `times` as long."""
    return max(1, math.ceil(steps * (times - 1)))


def correlation_time(values: Sequence[float]) -> float:
    """The integrated autocorrelation time of a sequence whose mean is 0, in values; at least 1.

    Sums of two neighbouring autocorrelations are added as long as they are positive (Geyer, Statistical Science 7,
    1992). As the mean is that of the sequence itself, each of them is too low by about the result over n.
    """
    n = len(values)
    variance = math.fsum(map(mul, values, values))
    if not variance > n * _ROUNDING**2:
        return 1.0
    time = 1.0
    for lag in range(1, n // 2, 2):
        pair = sum(map(mul, values, values[lag:])) + sum(map(mul, values, values[lag + 1 :]))
        if pair <= 0:
            break
        time += 2 * pair / variance
    return max(1.0, time / max(0.1, 1 - time / n))


class _WarmUp(NamedTuple):
    """A slower first part of a window."""

    lowers: float = 0.0
    """By how much the window's rate is lower than that of the rest, relative."""
    share: float = 0.0
    """Its share of the window's steps, 0 to 1."""
    score: float = 0.0
    """The difference, in units of the least that is certain."""


def _warm_up(means: Sequence[float]) -> _WarmUp:
    """The most certain of the first 10 % to 40 % of the batches against the others, by a t test."""
    n = len(means)
    best = _WarmUp()
    for first in range(1, n * 2 // 5 + 1):
        rest = means[first:]
        slower = math.fsum(rest) / len(rest) - math.fsum(means[:first]) / first
        error = stdev(rest) * math.sqrt(1 / first + 1 / len(rest))
        score = slower / max(t_quantile(1 - ALPHA, len(rest) - 1) * error, _ROUNDING)
        if score > max(1.0, best.score):
            best = _WarmUp(slower * first / n, first / n, score)
    return best


def _trend(means: Sequence[float], alpha: float) -> float:
    """The change of the rate over the window by linear regression, relative; 0 if it is not certain to `alpha`."""
    n = len(means)
    places = _places(n)
    square = math.fsum(map(mul, places, places))
    change = math.fsum(map(mul, places, means)) / square
    rest = [mean - change * place for mean, place in zip(means, places)]
    error = math.sqrt(math.fsum(map(mul, rest, rest)) / (n - 2) / square)
    if abs(change) > t_quantile(1 - alpha / 2, n - 2) * error + _ROUNDING:
        return change
    return 0.0


def _without_trend(values: Sequence[float], change: float) -> list[float]:
    return [value - change * place for value, place in zip(values, _places(len(values)))]


def _places(n: int) -> list[float]:
    """Where each of n values lies in the window, from -0.5 to 0.5."""
    return [(2 * index + 1 - n) / (2 * n) for index in range(n)]


class _States(NamedTuple):
    """Two levels that a window jumps between."""

    changes: int
    apart: float
    """The distance of the levels, relative to the rate."""


def _states(values: Sequence[float], resolution: float) -> _States | None:
    """The two levels of a window, None if it has one: the split with the least variance within (Otsu 1979).

    A running median of five leaves single slow steps out. Few values look like two levels by chance.
    """
    if len(values) < MIN_STEPS:
        return None
    smooth = [sorted(values[index : index + 5])[2] for index in range(len(values) - 4)]
    ordered = sorted(smooth)
    n, total = len(ordered), math.fsum(ordered)
    sums = [*accumulate(ordered)]
    between = [(sums[k - 1] * n - total * k) ** 2 / (k * (n - k)) for k in range(1, n)]
    split = 1 + max(range(n - 1), key=between.__getitem__)
    low, high = ordered[:split], ordered[split:]
    apart = math.fsum(high) / len(high) - math.fsum(low) / len(low)
    squares = math.fsum((deviation - total / n) ** 2 for deviation in ordered)
    inside = squares - between[split - 1] / n
    if apart < TOLERATED + resolution or apart * apart * n < SEPARATION**2 * inside:
        return None
    above = [deviation >= high[0] for deviation in smooth]
    return _States(sum(map(ne, above, above[1:])), apart)


def _means(values: Sequence[float], parts: int) -> list[float]:
    """The means of `parts` consecutive parts, whose lengths differ by one at most."""
    n = len(values)
    if parts == n:
        return list(values)
    ends = [n * part // parts for part in range(parts + 1)]
    sums = [0.0, *accumulate(values)]
    return [(sums[end] - sums[start]) / (end - start) for start, end in zip(ends, ends[1:])]
