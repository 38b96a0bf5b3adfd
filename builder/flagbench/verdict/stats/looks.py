"""Compute the levels at which a verdict has to hold if runs are repeated until it is decided.

Checking after every run and stopping at the first verdict is wrong more often than checking once. So the numbers of
runs at which the verdict is looked at are fixed beforehand, and each look has its own part of alpha (the probability
of a wrong verdict), by the spending function of Lan and DeMets (Biometrika 70, 1983) that is like Pocock's:

  spent(t) = alpha ln(1 + (e - 1) t),   t = runs so far / runs at the last look

A look is at the level 1 - (spent here - spent before). By Boole's inequality the parts add up to alpha whatever the
dependence of the looks, so this holds for t intervals of few runs too, where the usual boundaries are approximate; it
is a little conservative.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

ALPHA = 0.05
"""The probability of a wrong verdict over all looks."""
LOOKS = (1, 2, 3, 5, 8)
"""Numbers of runs after which `flagbench reproduce` looks at the verdict, unless told otherwise."""


def look_levels(looks: Sequence[int] = LOOKS) -> dict[int, float]:
    """Return the level of the two-sided interval at each look, by its number of runs.

    Raises:
        ValueError: the looks are not increasing numbers of runs.
    """
    if not looks or looks[0] < 1 or any(b <= a for a, b in pairwise(looks)):
        raise ValueError(f"looks must be increasing numbers of runs, from 1 on, not {list(looks)}")
    levels = {}
    spent_before = 0.0
    for runs in looks:
        spent = ALPHA * math.log1p((math.e - 1) * runs / looks[-1])
        levels[runs] = 1 - (spent - spent_before)
        spent_before = spent
    return levels
