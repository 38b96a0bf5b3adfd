"""How much slower devices became during a soak."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from flagbench_core.evidence.drift import lap_drifts

pytestmark = pytest.mark.image


def laps(*rates: float) -> Sequence[dict[str, list[float]]]:
    return [{"matmul_bf16": [700.0, rate]} for rate in rates]


def test_no_drift_of_two_laps() -> None:
    assert lap_drifts(laps(700, 700)) is None


def test_below_ten_laps_the_last_is_compared_with_the_second() -> None:
    assert lap_drifts(laps(800, 700, 600, 630)) == {"matmul_bf16": [1.0, 0.9]}


def test_from_ten_laps_on_the_last_fifth_is_compared_with_the_second() -> None:
    drifts = lap_drifts(laps(800, 800, 690, 710, 1, 1, 1, 1, 620, 640))
    assert drifts == {"matmul_bf16": [1.0, pytest.approx(0.9)]}


def test_a_measurement_that_a_compared_lap_lacks_has_no_drift() -> None:
    rates = [{"copy": [3.0], "all_reduce": [1.0]}, {"copy": [3.0], "all_reduce": [1.0]}, {"copy": [1.5]}]
    assert lap_drifts(rates) == {"copy": [0.5]}


def test_a_device_that_did_nothing_has_no_drift() -> None:
    assert lap_drifts([{"copy": [0.0]}] * 3) == {}
