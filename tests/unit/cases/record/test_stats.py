"""Median and spread, compared with the statistics module; intervals are tested in tests/unit/host/stats."""

from __future__ import annotations

import random
import statistics

import pytest

from flagbench_cases.shared.evidence import stats
from flagbench_cases.shared.stats.within import within_run

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


def test_stdev_keeps_its_digits_far_from_zero() -> None:
    values = [1e9 + offset for offset in (4.0, 7.0, 13.0, 16.0)]
    assert stats.stdev(values) == pytest.approx(30**0.5, rel=1e-9)


def test_median_leaves_its_input_alone() -> None:
    values = [3.0, 1.0, 2.0]
    assert stats.median(values) == 2.0
    assert values == [3.0, 1.0, 2.0]


def test_drift_compares_the_halves() -> None:
    assert stats.drift([1.0] * 10 + [1.1] * 10) == pytest.approx(0.1)
    assert stats.drift([2.0] * 21) == 0.0
    assert stats.drift([1.0] * 19) is None


def test_an_interval_scales_as_its_rate_does() -> None:
    seconds = sample(3, 100)
    base = within_run([32.0] * 100, seconds).interval
    assert base[0] < 3200 / sum(seconds) < base[1]
    more = within_run([8 * 32.0] * 100, seconds).interval
    slower = within_run([32.0] * 100, [4 * s for s in seconds]).interval
    assert more == pytest.approx([8 * bound for bound in base], rel=1e-12)
    assert slower == pytest.approx([bound / 4 for bound in base], rel=1e-12)


def test_an_interval_is_of_the_ratio_and_not_of_single_rates() -> None:
    # Long steps do proportionally more: the rate is 10 in every step.
    seconds = sample(5, 160)
    assert within_run([10 * s for s in seconds], seconds).interval == pytest.approx((10.0, 10.0), rel=1e-9)


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
