"""Statistics of one run: medians and spread, Student's t, the interval of a rate and what its gate refuses.

Student's t is compared with numbers of scipy 1.17.1: `stats.t.isf`, `cdf` and `sf`.
"""

from __future__ import annotations

import math
import random
import statistics

import pytest

from flagbench_core.stats import summary
from flagbench_core.stats.student import t_quantile, t_tail, t_two_sided
from flagbench_core.stats.within import MICRO_BATCHES, MIN_STEPS, correlation_time, within_run

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


def noise(n: int, seed: int = 1, spread: float = 0.02) -> list[float]:
    generator = random.Random(seed)
    return [0.1 * (1 + generator.gauss(0, spread)) for _ in range(n)]


@pytest.mark.parametrize("size", [1, 2, 3, 200])
def test_median_and_stdev(size: int) -> None:
    values = noise(size)
    assert summary.median(values) == statistics.median(values)
    assert summary.stdev(values) == pytest.approx(statistics.stdev(values) if size > 1 else 0.0, rel=1e-12)


def test_drift_compares_the_halves() -> None:
    assert summary.drift([1.0] * 10 + [1.1] * 10) == pytest.approx(0.1)
    assert summary.drift([2.0] * 21) == 0.0
    assert summary.drift([1.0] * 19) is None


def test_thinning_keeps_order_and_spacing() -> None:
    values = [*range(1000)]
    assert summary.thin(values, 10) == values[::100]
    assert (summary.thin(values, 1000), summary.thin([], 5)) == (values, [])
    for most in (1, 7, 333, 999):
        found = summary.thin(values, most)
        assert (len(found), found) == (most, sorted(set(found)))


@pytest.mark.parametrize(("df", "quantiles"), [(df, quantiles) for df, *quantiles in QUANTILES])
def test_quantiles(df: float, quantiles: list[float]) -> None:
    for p, expected in zip(PROBABILITIES, quantiles):
        assert t_quantile(p, df) == pytest.approx(expected, rel=1e-8)
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


def autoregressive(phi: float, n: int) -> list[float]:
    """Values with mean 0, variance 1 and the autocorrelation phi**lag."""
    generator, value, values = random.Random(3), 0.0, []
    for _ in range(n):
        value = phi * value + math.sqrt(1 - phi * phi) * generator.gauss(0, 1)
        values.append(value)
    return values


def refusal(seconds: list[float], steps: int | None = None) -> tuple[str, int]:
    found = within_run([8.0] * len(seconds), seconds, steps)
    assert found.interval is None
    assert found.refusal is not None
    return found.refusal.kind, found.refusal.further_steps


def test_the_interval_of_steady_steps_is_students_of_batches() -> None:
    seconds = noise(400)
    low, high = within_run([8.0] * 400, seconds).interval
    assert low < 8 * 400 / sum(seconds) < high
    # t(19 degrees of freedom) = 2.093 standard errors of 2 % / sqrt(400), give or take what twenty batches can tell.
    assert (high - low) / (low + high) == pytest.approx(2.093 * 0.02 / 20, rel=0.35)


def test_a_rate_is_the_work_over_the_time_whatever_the_steps() -> None:
    # Steps of twice the work take twice the time: nothing varies.
    amounts = [8.0, 16.0] * 100
    assert within_run(amounts, [amount / 80 for amount in amounts]).interval == pytest.approx((80, 80))


@pytest.mark.parametrize(
    ("seconds", "kind", "further"),
    [
        (noise(50), "short", range(50, 51)),
        ([], "short", range(100, 101)),
        ([0.3] * 20 + noise(180), "warm-up", range(1, 20_000)),
        ([0.1 * (1 + 0.3 * math.exp(-step / 15)) for step in range(200)], "warm-up", range(1, 20_000)),
        ([t * (1 + 0.03 * step / 200) for step, t in enumerate(noise(200))], "trend", range(200, 201)),
        ([t * (1.08 if step // 40 % 2 else 1) for step, t in enumerate(noise(400))], "states", range(100, 1000)),
        ([0.1 * (1 + 0.02 * value) for value in autoregressive(0.97, 400)], "correlated", range(1, 10_000)),
        ([*noise(5), 3.0, *noise(194)], "stall", range(0, 1)),
        ([*noise(5), 3.0, 3.0, *noise(193)], "warm-up", range(1, 100_000)),
        ([0.3] * 20 + [3.0] + noise(179), "warm-up", range(1, 100_000)),
        ([float("nan")] * 200, "data", range(0, 1)),
        ([math.inf, *noise(199)], "data", range(0, 1)),
        ([-0.1, *noise(199)], "data", range(0, 1)),
        ([0.0] * 200, "data", range(0, 1)),
        ([1e308] * 200, "data", range(0, 1)),
    ],
)
def test_a_window_that_says_nothing_is_refused(seconds: list[float], kind: str, further: range) -> None:
    found, steps = refusal(seconds)
    assert found == kind
    assert steps in further


def test_a_stall_is_named_by_its_step() -> None:
    seconds = [*noise(5), 3.0, *noise(194)]
    text = str(within_run([8.0] * 200, seconds).refusal)
    assert all(shown in text for shown in ("step 6", "3 s", "30 times"))
    assert "micro-batch 6" in str(within_run([8.0] * 200, seconds, counted=MICRO_BATCHES).refusal)


def test_a_small_change_widens_the_interval_by_its_size() -> None:
    seconds = noise(2000, spread=0.005)
    changed = [t * (1 + 0.003 * step / 2000) for step, t in enumerate(seconds)]
    (low, high), (lower, higher) = (within_run([8.0] * 2000, times).interval for times in (seconds, changed))
    assert higher - lower > high - low + 2 * 80 * 0.002
    # The level at the end is in it, and that at the beginning.
    assert lower < 80 / 1.003 < 80 < higher


def test_steps_that_happen_rarely_widen_the_interval() -> None:
    seconds = noise(1000)
    rare = [5 * t if step % 100 == 30 else t for step, t in enumerate(seconds)]
    low, high = within_run([8.0] * 1000, rare).interval
    assert low < 8 * 1000 / (100 * 1.04) < high
    assert high - low > 10 * (within_run([8.0] * 1000, seconds).interval[1] - 8 * 1000 / sum(seconds))


def test_blocks_of_steps_count_as_their_steps() -> None:
    blocks = [7 * t for t in noise(40)]
    assert within_run([56.0] * 40, blocks, 280).interval is not None
    assert within_run([56.0] * 20, blocks[:20], 140) == (None, None)  # too few values, although steps enough
    assert refusal(blocks, MIN_STEPS - 1) == ("short", 1)


@pytest.mark.parametrize(
    ("steps", "seconds", "slower", "kind"),
    [
        (20, 6.0, 0.0, None),
        (20, 4.9, 0.0, "short"),
        (19, 6.0, 0.0, "short"),
        (99, 1.1, 0.0, None),
        (20, 6.0, 0.1, "trend"),
    ],
)
def test_a_window_of_few_long_steps_is_steady_or_refused(
    steps: int, seconds: float, slower: float, kind: str | None
) -> None:
    times = [seconds * (t / 0.1) * (1 + slower * step / steps) for step, t in enumerate(noise(steps))]
    found = within_run([8.0] * steps, times)
    assert found.interval is None
    assert (found.refusal and found.refusal.kind) == kind


def test_levels_of_rounding_are_no_states() -> None:
    """Microseconds above 140 of products on an H100: mamf_bf16 of docs/measured/h100-roofs-mamf-bf16.json."""
    above = "2202211211113102111111113012311122112113111131021021211131122112211221122111202120113111210221112111"
    times = [140 + int(digit) for digit in above]
    assert within_run([8.0] * 100, [time * 1e-6 for time in times]).interval is not None
    assert refusal([time * 1e-3 for time in times])[0] == "states"  # of milliseconds they would be


def test_the_correlation_time_is_that_of_the_sequence() -> None:
    values = autoregressive(0.8, 20_000)
    mean = sum(values) / len(values)
    assert correlation_time([v - mean for v in values]) == pytest.approx(1.8 / 0.2, rel=0.2)
    assert correlation_time([0.0] * 50) == 1.0
    assert correlation_time([1.0, -1.0] * 50) == pytest.approx(
        1.0, abs=0.02
    )  # neighbours that cancel do not count for more than one each
