"""Computes the 95 % interval of a rate within one run: batch means with Student's t, and a gate before it.

`within_run` returns the interval for a metric such as p_core, or the reason why its window gives none.

The rate of a window is R = sum(amounts) / sum(seconds). To first order its error is that of the sum of the residuals
e = amount - R x seconds, over sum(seconds) (Cochran, Sampling Techniques, 3rd edition, 2.11). Steps are correlated,
so the variance of that sum is taken from a few long batches of consecutive steps, which are nearly independent, with
Student's t for their number (Schmeiser, Operations Research 30, 1982; Law, Simulation Modeling and Analysis, 9.5.3).

That is only right for a stationary window that is long compared with its correlation. The gate refuses other windows:

  short        fewer than MIN_STEPS steps: what happens once in a hundred steps may not have happened; or, of long
               steps, fewer than LONG_STEPS or LONG_SECONDS
  warm-up      its first part is slower than the rest
  trend        its rate rises or falls from the first batch to the last
  states       it jumps between two levels, such as two clocks, too rarely to weigh them
  correlated   fewer than MIN_EFFECTIVE independent values, according to the integrated autocorrelation time

A trend or a warm-up that is too small to refuse a window widens the interval by its size. If a refused window would
be accepted without its slowest step, that step is given as the reason (`stall`): the run was stopped or disturbed.

The correlation of a window with few long steps, or with few blocks of steps, cannot be estimated: if it passes the
gate, it has neither an interval nor a refusal.
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
"""The confidence level of the interval."""
MIN_STEPS = 100
"""The fewest steps of a window, unless its steps are long: see LONG_STEPS."""
LONG_STEPS = 20
LONG_SECONDS = 100.0
"""A window of at least LONG_STEPS steps is also long enough if it takes at least LONG_SECONDS: then the monitor,
which samples once a second, has as many samples of it as a window of MIN_STEPS has steps."""
MIN_VALUES = 30
"""The fewest blocks of steps from which an interval is computed. The evidence of a large job may have fewer."""
MIN_EFFECTIVE = 20.0
"""The fewest independent values, so that the variance is known well enough for an interval."""
FEWEST_BATCHES = 10
MOST_BATCHES = 20
EFFECTIVE_PER_BATCH = 5.0
"""The independent values in a batch, so that the means of neighbouring batches are nearly independent; the number of
batches follows from it, between FEWEST_BATCHES and MOST_BATCHES."""
ALPHA = 0.005
"""The significance level of each test of the gate: low, so that few stationary windows are refused."""
POSSIBLE = 0.1
"""The significance level of the test for a trend that is only possible, and widens the interval."""
RESOLUTION = 1e-6
"""Seconds. Times in the evidence are whole microseconds, so levels that are not further apart may be rounding."""
MIN_CHANGES = 20
"""The fewest changes between the two levels of a window from which their shares of the time are known."""
SEPARATION = 4.0
"""Two levels are at least this number of standard deviations apart. The halves of a normal distribution are 2.6."""
TOLERATED = 0.005
"""The largest change of the rate, relative, that only widens the interval. A larger one refuses the window."""
METHOD = "within-run batch means, Student t"
"""The `ci_method` of a record."""
STALL = 10.0
"""A step may be given as the reason for a refusal if it takes at least this number of times the median."""
_ROUNDING = 1e-12
"""Relative differences up to this size are errors of floating-point arithmetic."""
_LARGEST, _SMALLEST = 1e100, 1e-100
"""Neither sums nor rates of values between these overflow."""
_POINTS = 400
"""The most values whose correlation is computed, which takes quadratic time. Longer windows are averaged to this many
values before."""
_SMOOTHED = 5
"""The steps of the running median before levels are searched: it removes single slow steps, and pairs of them."""
_LONGEST_WARM_UP = 0.4
"""The largest share of a window that is tested for warm-up."""


class Counted(NamedTuple):
    """What the values of a window are of, in the words of a refusal."""

    singular: str
    plural: str


STEPS = Counted("step", "steps")
MICRO_BATCHES = Counted("micro-batch", "micro-batches")


class Refusal(NamedTuple):
    """Why a window gives no interval."""

    kind: str
    """`short`, `correlated`, `warm-up`, `trend`, `states`, `stall`, or `data` (values that cannot be times)."""
    text: str
    """The reason for a person."""
    further_steps: int
    """How many more steps would probably give an interval; 0 if no number would."""

    def __str__(self) -> str:
        if not self.further_steps:
            return self.text
        steps = f"about {self.further_steps:,} more steps"
        if self.further_steps == 1:
            steps = "1 more step"
        return f"{self.text}; {steps} would decide"


class WithinRun(NamedTuple):
    """The interval of a rate over a window, or why there is none; both are None if there are too few values."""

    interval: tuple[float, float] | None
    """The lower and the upper end, in the unit of the rate."""
    refusal: Refusal | None


def within_run(
    amounts: Sequence[float], seconds: Sequence[float], steps: int | None = None, counted: Counted = STEPS
) -> WithinRun:
    """The interval of the rate sum(amounts) / sum(seconds) over consecutive steps, or why the window gives none.

    Args:
        amounts: the work of each step, or of each block of consecutive steps.
        seconds: the time of each step or block.
        steps: the number of steps in all blocks; None if `amounts` and `seconds` are of single steps.
        counted: what is given in place of steps, for the text of a refusal.

    Raises:
        ValueError: `amounts` and `seconds` have different lengths.
    """
    if len(amounts) != len(seconds):
        raise ValueError(f"{len(amounts)} amounts and {len(seconds)} times are not of the same steps")
    n = len(seconds)
    if steps is None:
        steps = n
    text = f"the window of {steps:,} {counted.plural} is shorter than {MIN_STEPS}"
    short = Refusal("short", text, MIN_STEPS - steps)
    if steps < LONG_STEPS:
        return WithinRun(None, short)
    if not (_is_usable(amounts) and _is_usable(seconds)):
        text = "its times and amounts are not all numbers of 0 or more, with a positive sum"
        return WithinRun(None, Refusal("data", text, 0))
    work = math.fsum(amounts)
    total = math.fsum(seconds)
    if steps < MIN_STEPS and total < LONG_SECONDS:
        return WithinRun(None, short)
    # The residual of each step as a share of the mean work of a step. Their mean is 0.
    residuals = [n * (amount / work - time / total) for amount, time in zip(amounts, seconds)]
    if n < FEWEST_BATCHES:
        return WithinRun(None, None)
    if n < MIN_VALUES or steps < MIN_STEPS:
        batch_means = _means(residuals, FEWEST_BATCHES)
        return WithinRun(None, _refuse_unsettled(batch_means, steps, counted))
    points = min(n, _POINTS)
    values = _means(residuals, points)
    effective = points / _correlation_without_trend(residuals, values)
    batches = max(FEWEST_BATCHES, min(MOST_BATCHES, int(effective / EFFECTIVE_PER_BATCH)))
    batch_means = _means(residuals, batches)
    refusal = _refuse(batch_means, values, effective, steps, RESOLUTION * points / total, counted)
    if refusal is not None:
        if steps == n:
            refusal = _refuse_stall(amounts, seconds, counted) or refusal
        return WithinRun(None, refusal)
    # The standard error of the mean: from the batches, or from the correlation if that is larger.
    error = max(stdev(batch_means) / math.sqrt(batches), stdev(values) / math.sqrt(effective))
    rate = work / total
    half_width = rate * (t_two_sided(LEVEL, batches - 1) * error + _tolerated_change(batch_means))
    return WithinRun((rate - half_width, rate + half_width), None)


def _is_usable(values: Sequence[float]) -> bool:
    """Whether all values are finite and not negative, with a sum that is neither too small nor too large."""
    return min(values) >= 0 and max(values) < _LARGEST and math.fsum(values) > _SMALLEST


def _correlation_without_trend(residuals: Sequence[float], values: Sequence[float]) -> float:
    """The correlation time of `values`, which are means of the residuals.

    A small trend is removed before. It would look like correlation, and it widens the interval anyway.
    """
    trend = _trend(_means(residuals, FEWEST_BATCHES), POSSIBLE)
    if abs(trend) <= TOLERATED:
        values = _without_trend(values, trend)
    return correlation_time(values)


def _refuse_stall(amounts: Sequence[float], seconds: Sequence[float], counted: Counted) -> Refusal | None:
    """The slowest step as the reason for a refusal.

    None if there are other steps nearly as slow, or if the window would give no interval without it either.
    """
    slowest = max(range(len(seconds)), key=seconds.__getitem__)
    median = sorted(seconds)[len(seconds) // 2]
    other_amounts = [*amounts[:slowest], *amounts[slowest + 1 :]]
    other_seconds = [*seconds[:slowest], *seconds[slowest + 1 :]]
    if seconds[slowest] < STALL * median or max(other_seconds) >= STALL * median:
        return None
    # A window of exactly MIN_STEPS steps is not to be refused as too short without its slowest step.
    without_slowest = within_run(other_amounts, other_seconds, max(MIN_STEPS, len(other_seconds)))
    if without_slowest.interval is None:
        return None
    text = (
        f"{counted.singular} {slowest + 1:,} of its window took {seconds[slowest]:.3g} s, "
        f"{seconds[slowest] / median:,.0f} times the median, and the others are steady; run it again undisturbed"
    )
    return Refusal("stall", text, 0)


def _refuse(
    batch_means: Sequence[float],
    values: Sequence[float],
    effective: float,
    steps: int,
    resolution: float,
    counted: Counted,
) -> Refusal | None:
    """The gate: why a window gives no interval, or None if it gives one.

    Args:
        batch_means: the mean residual of each batch, which is the deviation of its rate from the window's, relative.
        values: the residuals of single steps, or their means over short blocks of steps.
        effective: how many of the values are independent.
        steps: the number of steps in the window.
        resolution: the relative size of a difference between values that may be due to rounded times.
        counted: as in `within_run`.
    """
    refusal = _refuse_unsettled(batch_means, steps, counted)
    if refusal is not None:
        return refusal
    levels = _find_levels(values, resolution)
    if levels is not None and levels.changes < MIN_CHANGES:
        text = (
            f"its rate switches between two levels {levels.distance:.1%} apart, too few times for an interval "
            f"({levels.changes}; at least {MIN_CHANGES} are needed)"
        )
        return Refusal("states", text, _further_steps(steps, MIN_CHANGES / levels.changes))
    if effective < MIN_EFFECTIVE:
        text = (
            f"its {steps:,} {counted.plural} are correlated and worth only {effective:.0f} independent ones: at "
            f"least {MIN_EFFECTIVE:.0f} are needed"
        )
        return Refusal("correlated", text, _further_steps(steps, MIN_EFFECTIVE / effective))
    return None


def _tolerated_change(batch_means: Sequence[float]) -> float:
    """The size of a warm-up or a trend that was too small to refuse the window, relative to its rate."""
    return max(_find_warm_up(batch_means).lowers, abs(_trend(batch_means, POSSIBLE)))


def _refuse_unsettled(batch_means: Sequence[float], steps: int, counted: Counted) -> Refusal | None:
    """The refusal of a window with a warm-up or a trend; None if its rate has settled. Arguments as in `_refuse`."""
    warm_up = _find_warm_up(batch_means)
    if warm_up.lowers > TOLERATED:
        length = math.ceil(steps * warm_up.share)
        slower = warm_up.lowers / warm_up.share
        text = f"its first {length:,} {counted.plural} are warm-up, {slower:.1%} slower than the window"
        return Refusal("warm-up", text, _further_steps(steps, warm_up.lowers / TOLERATED))
    change = _trend(batch_means, ALPHA)
    if abs(change) > TOLERATED:
        text = f"its rate changes by {change:+.1%} of its mean from the beginning to the end, so it has not settled"
        return Refusal("trend", text, steps)
    return None


def _further_steps(steps: int, factor: float) -> int:
    """How many more steps make a window of `steps` steps `factor` times as long; at least 1."""
    return max(1, math.ceil(steps * (factor - 1)))


def correlation_time(values: Sequence[float]) -> float:
    """The integrated autocorrelation time of a sequence whose mean is 0: how many values count as one; at least 1.

    Sums of two neighbouring autocorrelations are added as long as they are positive (Geyer, Statistical Science 7,
    1992). Because the mean is that of the sequence itself, each autocorrelation is too low by about the result / n.
    """
    n = len(values)
    squares = math.fsum(map(mul, values, values))
    if not squares > n * _ROUNDING**2:  # all values are 0, or one is NaN
        return 1.0
    time = 1.0
    for lag in range(1, n // 2, 2):
        products = sum(map(mul, values, values[lag:]))
        following_products = sum(map(mul, values, values[lag + 1 :]))
        pair = products + following_products
        if pair <= 0:
            break
        time += 2 * pair / squares
    bias = max(0.1, 1 - time / n)  # not less: near 0 the correction is unreliable
    return max(1.0, time / bias)


class _WarmUp(NamedTuple):
    """A slower first part of a window."""

    lowers: float = 0.0
    """By how much the warm-up lowers the rate of the whole window, relative; 0 if there is none."""
    share: float = 0.0
    """The share of the window's steps that are warm-up, 0 to 1."""
    score: float = 0.0
    """The difference between the two parts over the smallest difference that is significant."""


def _find_warm_up(batch_means: Sequence[float]) -> _WarmUp:
    """The most significant warm-up: a first part of a window that is slower than the others, in a t test.

    Each number of first batches up to _LONGEST_WARM_UP of the window is tested. Arguments as in `_refuse`.
    """
    n = len(batch_means)
    best = _WarmUp()
    for length in range(1, int(n * _LONGEST_WARM_UP) + 1):
        later = batch_means[length:]
        difference = math.fsum(later) / len(later) - math.fsum(batch_means[:length]) / length
        error = stdev(later) * math.sqrt(1 / length + 1 / len(later))
        significant = max(t_quantile(1 - ALPHA, len(later) - 1) * error, _ROUNDING)
        score = difference / significant
        if score > max(1.0, best.score):
            best = _WarmUp(difference * length / n, length / n, score)
    return best


def _trend(batch_means: Sequence[float], alpha: float) -> float:
    """The change of the rate from the beginning to the end of the window by linear regression, relative.

    0 if the change is not significant at the level `alpha`.
    """
    n = len(batch_means)
    places = _places(n)
    square = math.fsum(map(mul, places, places))
    change = math.fsum(map(mul, places, batch_means)) / square
    deviations = _without_trend(batch_means, change)
    variance = math.fsum(map(mul, deviations, deviations)) / (n - 2)
    error = math.sqrt(variance / square)
    if abs(change) > t_quantile(1 - alpha / 2, n - 2) * error + _ROUNDING:
        return change
    return 0.0


def _without_trend(values: Sequence[float], change: float) -> list[float]:
    """The values without a linear change of `change` from the beginning to the end."""
    return [value - change * place for value, place in zip(values, _places(len(values)))]


def _places(n: int) -> list[float]:
    """Where each of n values lies in the window, from -0.5 to 0.5."""
    return [(2 * index + 1 - n) / (2 * n) for index in range(n)]


class _Levels(NamedTuple):
    """Two levels between which the rate of a window jumps."""

    changes: int
    """How many times the rate changes from one level to the other."""
    distance: float
    """The distance between the levels, relative to the rate."""


def _find_levels(values: Sequence[float], resolution: float) -> _Levels | None:
    """The two levels of a window: the split of its values with the least variance within the parts (Otsu 1979).

    None if the parts are not far enough apart, or for few values, which look like two levels by chance. Arguments as
    in `_refuse`.
    """
    if len(values) < MIN_STEPS:
        return None
    smooth = _running_median(values)
    ordered = sorted(smooth)
    n = len(ordered)
    total = math.fsum(ordered)
    sums = list(accumulate(ordered))
    # n times the sum of squares between the two parts, for the k lowest values and the others.
    between = [(sums[k - 1] * n - total * k) ** 2 / (k * (n - k)) for k in range(1, n)]
    split = 1 + max(range(n - 1), key=between.__getitem__)
    low, high = ordered[:split], ordered[split:]
    distance = math.fsum(high) / len(high) - math.fsum(low) / len(low)
    squares = math.fsum((value - total / n) ** 2 for value in ordered)
    squares_within = squares - between[split - 1] / n
    if distance < TOLERATED + resolution:
        return None
    if distance * distance * n < SEPARATION**2 * squares_within:
        return None
    is_high = [value >= high[0] for value in smooth]
    changes = sum(map(ne, is_high, is_high[1:]))
    return _Levels(changes, distance)


def _running_median(values: Sequence[float]) -> list[float]:
    """The median of every _SMOOTHED consecutive values."""
    medians = []
    for start in range(len(values) - _SMOOTHED + 1):
        neighbours = sorted(values[start : start + _SMOOTHED])
        medians.append(neighbours[_SMOOTHED // 2])
    return medians


def _means(values: Sequence[float], parts: int) -> list[float]:
    """The means of `parts` consecutive parts, whose lengths differ by one at most."""
    n = len(values)
    if parts == n:
        return list(values)
    ends = [n * part // parts for part in range(parts + 1)]
    sums = [0.0, *accumulate(values)]
    return [(sums[end] - sums[start]) / (end - start) for start, end in zip(ends, ends[1:])]
