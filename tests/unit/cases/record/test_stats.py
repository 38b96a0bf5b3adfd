"""Median and spread, compared with the statistics module; intervals are tested in tests/unit/host/stats."""

from __future__ import annotations

import random
import statistics

import pytest

from flagbench_core.evidence import stats

pytestmark = pytest.mark.image


def sample(seed: int, size: int) -> list[float]:
    generator = random.Random(seed)
    return [generator.gauss(0.1, 0.02) for _ in range(size)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 19, 200])
def test_median_and_stdev_are_those_of_the_statistics_module(size: int) -> None:
    values = sample(size, size)
    assert stats.median(values) == statistics.median(values)
    expected = statistics.stdev(values) if size > 1 else 0.0
    assert stats.stdev(values) == pytest.approx(expected, rel=1e-12)


def test_drift_compares_the_halves() -> None:
    assert stats.drift([1.0] * 10 + [1.1] * 10) == pytest.approx(0.1)
    assert stats.drift([2.0] * 21) == 0.0
    assert stats.drift([1.0] * 19) is None


def test_thinning_keeps_order_and_spacing() -> None:
    values = [float(i) for i in range(1000)]
    thin = stats.thin(values, 10)
    assert thin == [0.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0, 900.0]
    assert stats.thin(values, 1000) == values
    assert stats.thin([], 5) == []
    for most in (1, 7, 333, 999):
        found = stats.thin(values, most)
        assert len(found) == most
        assert found == sorted(set(found))
