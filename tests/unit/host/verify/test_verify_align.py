"""Two loss curves by the published rule: |A - B| / |B|, its mean over the steps from the 21st on, under 2 %."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from catalogs import CATALOG
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.record.read import read_record
from flagbench.verify import Alignment, align
from flagbench.verify.curve import Curve, of_record

from .conftest import ROWS

STEPS = 100


def curve(of_step: Callable[[int], float | None], steps: Any = range(1, STEPS + 1), name: str = "a") -> Curve:
    return Curve(name, {step: of_step(step) for step in steps})


REFERENCE = curve(lambda step: 10.0 - step / 20, name="b")


def off(relative: Mapping[int, float] | float) -> Curve:
    """REFERENCE, off by a share, of every step or of some."""
    share = (lambda step: relative) if isinstance(relative, float) else lambda step: relative.get(step, 0.0)
    return curve(lambda step: REFERENCE.losses[step] * (1 + share(step)))


# The rule


def test_the_error_is_relative_to_the_reference() -> None:
    a, b = curve(lambda step: 3.0), curve(lambda step: 2.0)
    assert align(a, b, within=1.0).mean_error == pytest.approx(1 / 2)
    assert align(b, a, within=1.0).mean_error == pytest.approx(1 / 3)
    negative = curve(lambda step: -2.0)
    assert align(curve(lambda step: -3.0), negative, within=1.0).mean_error == pytest.approx(1 / 2)


@pytest.mark.parametrize(
    ("share", "verdict"),
    [(0.0, "ALIGNED"), (0.0199, "ALIGNED"), (-0.0199, "ALIGNED"), (0.0201, "DIVERGED"), (-0.5, "DIVERGED")],
)
def test_the_mean_decides(share: float, verdict: str) -> None:
    found = align(off(share), REFERENCE)
    assert (found.verdict, found.compared, found.published_rule) == (verdict, 80, True)
    assert found.mean_error == pytest.approx(abs(share))


def test_a_mean_equal_to_the_bound_is_not_less_than_it() -> None:
    a, b = curve(lambda step: 1.5), curve(lambda step: 1.0)
    assert align(a, b, within=0.5).verdict is Alignment.DIVERGED


def test_one_bad_step_can_be_within_the_mean() -> None:
    found = align(off({50: 1.0}), REFERENCE)
    assert found.verdict is Alignment.ALIGNED
    assert found.mean_error == pytest.approx(1 / 80)
    assert (found.largest_error, found.largest_error_step) == (pytest.approx(1.0), 50)


def test_errors_of_opposite_sign_do_not_cancel() -> None:
    found = align(off({step: 0.03 if step % 2 else -0.03 for step in range(1, 101)}), REFERENCE)
    assert found.verdict is Alignment.DIVERGED


@pytest.mark.parametrize(("step", "verdict"), [(20, "ALIGNED"), (21, "DIVERGED")])
def test_the_21st_step_is_the_first_that_counts(step: int, verdict: str) -> None:
    found = align(off({step: 9.0}), REFERENCE)
    assert found.verdict == verdict
    assert found.largest_error == pytest.approx(9.0 if step == 21 else 0.0)


def test_first_step_and_bound_can_be_set() -> None:
    assert align(off({20: 9.0}), REFERENCE, from_step=20).verdict is Alignment.DIVERGED
    assert align(off(0.05), REFERENCE, within=0.06).verdict is Alignment.ALIGNED
    for options in ({"from_step": 20}, {"within": 0.06}):
        assert align(REFERENCE, off(0.001), **options).published_rule is False


@pytest.mark.parametrize(
    "options", [{"within": 0.0}, {"within": float("nan")}, {"within": float("inf")}, {"from_step": 0}]
)
def test_settings_out_of_range_are_usage_errors(options: Any) -> None:
    with pytest.raises(FlagbenchError) as caught:
        align(REFERENCE, REFERENCE, **options)
    assert caught.value.code is ExitCode.USAGE


# Where they diverge


@pytest.mark.parametrize(
    ("errors", "wanted"),
    [
        ({}, None),
        (dict.fromkeys(range(60, 101), 0.1), 60),
        ({100: 0.1}, 100),
        # It comes back once, or at the end.
        ({step: 0.1 for step in range(60, 101) if step != 80}, 81),
        (dict.fromkeys(range(60, 100), 0.1), None),
        (dict.fromkeys(range(1, 101), 0.1), 1),
    ],
)
def test_the_first_step_from_which_every_error_is_above_the_bound(errors: Any, wanted: int | None) -> None:
    assert align(off(errors), REFERENCE).diverges_from == wanted


def test_an_error_equal_to_the_bound_does_not_exceed_it() -> None:
    a = curve(lambda step: 1.5 if step <= 70 else 2.0)
    assert align(a, curve(lambda step: 1.0), within=0.5).diverges_from == 71


def test_the_excerpt_has_every_common_step_once_and_shows_which_count() -> None:
    found = align(off(0.01), REFERENCE)
    assert [(row.first, row.counted) for row in found.excerpt][:2] == [(1, False), (21, True)]
    assert found.excerpt[-1].last == 100
    for row, after in zip(found.excerpt, found.excerpt[1:]):
        assert after.first == row.last + 1
    assert len(found.excerpt) <= 10
    assert all(row.mean_error == pytest.approx(0.01) for row in found.excerpt)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=80, unique=True), st.integers(1, 60))
def test_the_excerpt_of_any_steps(steps: list[int], from_step: int) -> None:
    found = align(curve(lambda step: 2.0, sorted(steps)), curve(lambda step: 2.0, range(1, 301)), from_step=from_step)
    assert len(found.excerpt) <= 10
    assert sum(row.counted for row in found.excerpt) >= (found.compared > 0)
    assert all((row.first >= from_step) == row.counted == (row.last >= from_step) for row in found.excerpt)


# Curves of which not every step can be compared


def test_only_common_steps_are_compared_and_the_others_are_counted() -> None:
    longer = curve(lambda step: 2.0, range(1, 151))
    gaps = curve(lambda step: 2.0, range(1, 131, 2), name="b")
    found = align(longer, gaps)
    assert found.verdict is Alignment.ALIGNED
    assert (found.compared, found.only_in_a, found.only_in_b) == (55, 75, 0)
    assert any("75 steps" in note for note in found.notes)
    assert (align(gaps, longer).only_in_a, align(gaps, longer).only_in_b) == (0, 75)


@pytest.mark.parametrize("steps", [range(1, 21), range(101, 200), [1]])
def test_without_a_common_step_that_counts_there_is_no_answer(steps: Any) -> None:
    found = align(curve(lambda step: 1.0, steps), REFERENCE)
    assert (found.verdict, found.compared, found.mean_error) == (Alignment.INCONCLUSIVE, 0, None)
    assert found.verdict.exit_code is ExitCode.INCONCLUSIVE


@pytest.mark.parametrize(
    ("steps", "missing"), [(range(1, 22), 79), ([21], 79), ([*range(1, 60), *range(61, 101)], 1)]
)
def test_without_some_steps_of_the_reference_nothing_is_concluded(steps: Any, missing: int) -> None:
    found = align(curve(lambda step: REFERENCE.losses[step], steps), REFERENCE)
    assert (found.verdict, found.only_in_b) == (Alignment.INCONCLUSIVE, missing)
    far = align(curve(lambda step: 9.0 * REFERENCE.losses[step], steps), REFERENCE)
    assert far.verdict is Alignment.INCONCLUSIVE


def test_a_shorter_curve_is_compared_as_far_as_it_goes_if_asked() -> None:
    short = curve(lambda step: REFERENCE.losses[step], range(1, 41))
    found = align(short, REFERENCE, to_step=40)
    assert (found.verdict, found.compared, found.published_rule) == (Alignment.ALIGNED, 20, False)
    assert align(short, REFERENCE, to_step=41).verdict is Alignment.INCONCLUSIVE
    longer = align(REFERENCE, short)
    assert (longer.verdict, longer.compared, longer.only_in_a) == (Alignment.ALIGNED, 20, 60)
    with pytest.raises(FlagbenchError):
        align(short, REFERENCE, to_step=20)


def test_losses_that_the_record_of_a_long_run_does_not_have_are_missing() -> None:
    cut = replace(curve(lambda step: REFERENCE.losses[step], range(1, 41)), cut=60)
    for a in (REFERENCE, cut):
        found = align(a, replace(cut, name="b"))
        assert (found.verdict, found.compared, found.only_in_b) == (Alignment.INCONCLUSIVE, 20, 60)
    assert align(cut, REFERENCE, to_step=40).verdict is Alignment.ALIGNED


def test_a_mean_that_rounding_puts_below_the_bound_is_not() -> None:
    found = align(curve(lambda step: 10.2), curve(lambda step: 10.0))
    assert found.verdict is Alignment.DIVERGED


def test_what_neither_record_says_makes_nothing_aligned() -> None:
    runs = [replace(of_record(read_record(ROWS / f"run-distilbert-{name}.json"))) for name in ("1", "seed")]
    silent = [replace(run, record=replace(run.record, conditions={})) for run in runs]
    found = align(silent[0], silent[1], CATALOG.cases["distilbert"], within=1.0)
    assert found.verdict is Alignment.INCONCLUSIVE
    assert any("seed" in note for note in found.notes)
    said = [
        replace(runs[0]),
        replace(
            runs[1],
            record=replace(runs[1].record, conditions=dict.fromkeys(runs[1].record.conditions, "not published")),
        ),
    ]
    for pair in (said, said[::-1]):
        assert align(*pair, CATALOG.cases["distilbert"], within=1.0).verdict is Alignment.NOT_COMPARABLE


@pytest.mark.parametrize("side", ["A", "B"])
def test_a_loss_that_is_not_finite_has_no_relative_error(side: str) -> None:
    broken = curve(lambda step: None if step == 30 else REFERENCE.losses[step])
    found = align(broken, REFERENCE) if side == "A" else align(REFERENCE, broken)
    assert found.verdict is Alignment.INVALID
    assert "30" in found.reason
    assert f"of {side} " in found.reason
    assert (found.mean_error, found.largest_error) == (None, 0.0)


@pytest.mark.parametrize("zero", [0.0, -0.0, 5e-324])
def test_a_reference_of_zero_has_no_relative_error(zero: float) -> None:
    b = curve(lambda step: zero if step == 40 else 2.0, name="b")
    found = align(curve(lambda step: 2.0), b)
    assert found.verdict is Alignment.INVALID
    assert "step 40" in found.reason


def test_a_step_that_does_not_count_may_be_without_a_relative_error() -> None:
    a = curve(lambda step: None if step == 5 else REFERENCE.losses[step])
    found = align(a, REFERENCE)
    assert found.verdict is Alignment.ALIGNED
    assert any("step 5" in note for note in found.notes)


def test_curves_that_never_end_in_a_number_diverge_from_there() -> None:
    a = curve(lambda step: None if step > 90 else REFERENCE.losses[step])
    assert align(a, REFERENCE).diverges_from == 91


def test_steps_counted_from_another_number_are_noticed() -> None:
    def loss(step: int) -> float:
        return 5.0 + (step * 7919 % 13) / 10

    shifted = align(curve(loss), curve(lambda step: loss(step - 1) * 1.005, name="b"))
    assert shifted.verdict is Alignment.DIVERGED
    assert any("s+1" in note for note in shifted.notes)

    def smooth(step: int) -> float:
        return 100.0 - step / 10

    # A falling curve that is too high is a little closer to the step before.
    for other in (lambda step: loss(step) * 1.1, lambda step: smooth(step) * 1.01):
        base = loss if other(1) < 50 else smooth
        assert not any("check" in note for note in align(curve(base), curve(other, name="b")).notes)


def test_equal_curves_may_be_copies() -> None:
    assert any("copies" in note for note in align(off(0.0), REFERENCE).notes)
    assert not any("copies" in note for note in align(off(0.001), REFERENCE).notes)
