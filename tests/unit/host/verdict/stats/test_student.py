"""Student's t, against numbers of scipy 1.17.1: `stats.t.isf`, `cdf` and `sf`."""

from __future__ import annotations

import pytest

from flagbench_core.stats.student import t_quantile, t_tail, t_two_sided

PROBABILITIES = (0.9, 0.975, 0.995, 0.99995)
QUANTILES = [
    (1, 3.077683537, 12.70620474, 63.65674116, 6366.197671),
    (1.5, 2.196398418, 6.016663104, 17.82031051, 384.5724025),
    (3.7, 1.557565839, 2.867520707, 4.869252253, 17.86443845),
    (10, 1.372183641, 2.228138852, 3.169272673, 6.211050891),
    (30.5, 1.309931316, 2.040869445, 2.746967064, 4.471506299),
    (1e4, 1.28163623, 1.96020124, 2.576321047, 3.892161984),
    (1e7, 1.28155165, 1.959964222, 2.575829795, 3.890593456),
]


@pytest.mark.parametrize(("df", "quantiles"), [(df, quantiles) for df, *quantiles in QUANTILES])
def test_quantiles(df: float, quantiles: list[float]) -> None:
    for p, expected in zip(PROBABILITIES, quantiles):
        assert t_quantile(p, df) == pytest.approx(expected, rel=1e-8)
        assert t_quantile(1 - p, df) == pytest.approx(-expected, rel=1e-6)  # 1 - p has fewer digits
        assert t_two_sided(2 * p - 1, df) == pytest.approx(expected, rel=1e-6)
        assert t_tail(expected, df) == pytest.approx(1 - p, abs=1e-8)


@pytest.mark.parametrize(
    ("t", "df", "tail"),
    [
        (0, 3, 0.5),
        (0.5, 1, 0.3524163823),
        (1.3, 2.5, 0.1502433946),
        (6, 4, 0.001941268523),
        (40, 3.3, 7.529443641e-06),
        (3, 1e7, 0.001349901356),
    ],
)
def test_probabilities(t: float, df: float, tail: float) -> None:
    assert t_tail(t, df) == pytest.approx(tail, rel=1e-8)
