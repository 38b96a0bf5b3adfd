"""Median, spread and the block bootstrap, held against the statistics module and against simulated runs."""

from __future__ import annotations

import random
import statistics

import numpy
import pytest

from flagbench_cases.shared.evidence import stats

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


def test_an_interval_needs_twenty_steps() -> None:
    assert stats.rate_interval([1.0] * 19, [1.0] * 19) is None
    assert stats.rate_interval([1.0] * 20, [1.0] * 20) == (1.0, 1.0)


@pytest.mark.parametrize("size", [20, 21, 50, 200, 1000])
def test_an_interval_is_one_for_one_input_and_holds_the_point_estimate(size: int) -> None:
    seconds = sample(size, size)
    amounts = [32.0] * size
    first = stats.rate_interval(amounts, seconds)
    assert first == stats.rate_interval(amounts, seconds)
    low, high = first
    assert low < sum(amounts) / sum(seconds) < high


def test_an_interval_scales_as_its_rate_does() -> None:
    seconds = sample(3, 100)
    base = stats.rate_interval([32.0] * 100, seconds)
    more = stats.rate_interval([8 * 32.0] * 100, seconds)
    slower = stats.rate_interval([32.0] * 100, [4 * s for s in seconds])
    assert more == pytest.approx([8 * bound for bound in base], rel=1e-12)
    assert slower == pytest.approx([bound / 4 for bound in base], rel=1e-12)


def test_an_interval_is_of_the_ratio_and_not_of_single_rates() -> None:
    # Long steps do proportionally more: the rate is 10 in every step, whatever is drawn.
    seconds = sample(5, 60)
    found = stats.rate_interval([10 * s for s in seconds], seconds)
    assert found == pytest.approx((10.0, 10.0), rel=1e-9)


@pytest.mark.slow
def test_the_interval_covers_the_true_rate_of_autocorrelated_steps() -> None:
    """Step times are AR(1) with phi 0.6, as clocks and temperature make them; the nominal coverage is 95 %."""
    generator = numpy.random.RandomState(20)
    runs, steps, phi, mean = 300, 200, 0.6, 0.1
    covered = naive_covered = 0
    for _ in range(runs):
        noise = generator.normal(0.0, 0.01, steps)
        deviation = numpy.empty(steps)
        deviation[0] = noise[0] / (1 - phi**2) ** 0.5
        for i in range(1, steps):
            deviation[i] = phi * deviation[i - 1] + noise[i]
        seconds = (mean + deviation).tolist()
        found = stats.rate_interval([32.0] * steps, seconds)
        covered += found[0] <= 32.0 / mean <= found[1]
        half = 1.96 * statistics.stdev(seconds) / steps**0.5
        naive_covered += abs(statistics.mean(seconds) - mean) <= half
    print("coverage: block bootstrap %.1f %%, independent steps %.1f %%" % (covered / 3, naive_covered / 3))
    assert 0.88 <= covered / runs <= 0.99
    assert naive_covered / runs < 0.80  # what blocks are for


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
