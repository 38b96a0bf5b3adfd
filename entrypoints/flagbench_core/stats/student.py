"""Student's t distribution: cumulative probability and quantiles, for any degrees of freedom.

The probability is the regularised incomplete beta function, by its continued fraction (DLMF 8.17.22) with the
modified Lentz algorithm (Press et al., Numerical Recipes, 3rd edition, 6.4); a quantile is its root. The relative
error is under 1e-8.
"""

from __future__ import annotations

import math
from functools import lru_cache

_TINY = 1e-300
"""The number that takes the place of 0 as a denominator in Lentz's algorithm."""
_PRECISION = 1e-15
"""The continued fraction ends if its last term changes it by a smaller share: a few units of the last digit."""
_MOST_TERMS = 10_000
"""The most rounds of the continued fraction: far more than the 40 that it took for up to _NEARLY_NORMAL degrees."""
_MOST_ITERATIONS = 200
"""The most steps to a quantile: far more than the 30 that it took from one degree of freedom on."""
_QUANTILE_PRECISION = 1e-13
"""A quantile is found if the last step changed it by a smaller share."""
_NEARLY_NORMAL = 1e6
"""From this number of degrees of freedom on, a normal approximation is exact to 1e-8."""


def t_tail(t: float, df: float) -> float:
    """The probability that Student's t with `df` > 0 degrees of freedom exceeds `t` >= 0."""
    if math.isinf(t):
        return 0.0
    if df >= _NEARLY_NORMAL:
        return 0.5 * math.erfc(_to_normal(t, df) / math.sqrt(2))
    square = t * t
    return 0.5 * _incomplete_beta(df / 2, 0.5, df / (df + square), square / (df + square))


def t_quantile(p: float, df: float) -> float:
    """The value that Student's t with `df` > 0 degrees of freedom stays below with probability `p` > 0.5."""
    return _exceeded_with(1 - p, df)


def t_two_sided(level: float, df: float) -> float:
    """The half-width, in standard errors, of a two-sided interval of `level`, such as 0.95."""
    # The tail and not 1 - level: a level of 0.99999 keeps its digits.
    return _exceeded_with((1 - level) / 2, df)


@lru_cache(maxsize=1024)
def _exceeded_with(tail: float, df: float) -> float:
    """The positive value that Student's t exceeds with probability `tail`.

    It is the root of log(t_tail(t)) = log(tail), by Newton's method, for which the logarithm is nearly straight. The
    root is kept between `low` and `high`; a step that leaves them is replaced by one of bisection.
    """
    low = 0.0
    high = 1.0
    while t_tail(high, df) > tail:
        low = high
        high *= 2
    t = (low + high) / 2
    for _ in range(_MOST_ITERATIONS):
        probability = t_tail(t, df)
        if probability > tail:
            low = t
        else:
            high = t
        following = t + _newton_step(t, df, probability, tail)
        if not low <= following <= high:
            following = (low + high) / 2
        if abs(following - t) <= _QUANTILE_PRECISION * t:
            return following
        t = following
    return t


def _newton_step(t: float, df: float, probability: float, tail: float) -> float:
    """The step of Newton's method from `t`, which is exceeded with `probability`, towards that exceeded with `tail`.

    Infinite if the probability or its slope is too small for a float.
    """
    if probability <= 0:
        return math.inf
    slope = _density(t, df) / probability
    if slope <= 0:
        return math.inf
    return math.log(probability / tail) / slope


def _density(t: float, df: float) -> float:
    """The probability density of Student's t."""
    log = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
    return math.exp(log - (df + 1) / 2 * math.log1p(t * t / df))


def _to_normal(t: float, df: float) -> float:
    """The normal deviate with the same tail, for large `df`: Abramowitz and Stegun 26.7.8, first correction."""
    return t * (1 - 1 / (4 * df)) / math.sqrt(1 + t * t / (2 * df))


def _incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """The regularised incomplete beta function I_x(a, b); `rest` is 1 - x, which the caller knows to more digits."""
    if x <= 0:
        return 0.0
    if rest <= 0:
        return 1.0
    log = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    # The fraction converges fast below the mean of the distribution; above, I_x(a, b) = 1 - I_{1-x}(b, a).
    if x < (a + 1) / (a + b + 2):
        return math.exp(log) * _fraction(a, b, x) / a
    return 1 - math.exp(log) * _fraction(b, a, rest) / b


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, by the modified Lentz algorithm.

    `c` and `d` are the ratios of successive numerators and of successive denominators, as in Numerical Recipes. Each
    round has an even and an odd term.
    """
    c = 1.0
    d = 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, _MOST_TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            fraction *= c * d
        if abs(c * d - 1) < _PRECISION:
            break
    return fraction


def _away_from_zero(number: float) -> float:
    """The number, or _TINY if it is too near to 0 to divide by."""
    if abs(number) > _TINY:
        return number
    return _TINY
