"""Two loss curves by the published rule: |A - B| / |B|, its mean over the steps from the 21st on, under 2 %."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from catalogs import CATALOG
from flagbench.errors import FlagbenchError
from flagbench.records.read import read_record
from flagbench.verdict import Alignment, align
from flagbench.verdict.curve import Curve, of_record
from flagbench_core.exit_codes import ExitCode

from .conftest import ROWS

STEPS = 100


def curve(
    of_step: Callable[[int], float | None], steps: Iterable[int] = range(1, STEPS + 1), name: str = "a"
) -> Curve:
    return Curve(name, {step: of_step(step) for step in steps})


def even(loss: float, steps: Iterable[int] = range(1, STEPS + 1)) -> Curve:
    """The same loss at every step."""
    return curve(lambda step: loss, steps)


REFERENCE = curve(lambda step: 10.0 - step / 20, name="b")


def off(relative: Mapping[int, float] | float, steps: Iterable[int] = range(1, STEPS + 1)) -> Curve:
    """REFERENCE, off by a share, of every step or of some."""
    share = (lambda step: relative) if isinstance(relative, float) else lambda step: relative.get(step, 0.0)
    return curve(lambda step: REFERENCE.losses[step] * (1 + share(step)), steps)


@pytest.mark.parametrize(
    ("a", "b", "options", "verdict", "mean"),
    [
        (off(0.0), REFERENCE, {}, "ALIGNED", 0.0),
        (off(0.0199), REFERENCE, {}, "ALIGNED", 0.0199),
        (off(-0.0199), REFERENCE, {}, "ALIGNED", 0.0199),
        (off(0.0201), REFERENCE, {}, "DIVERGED", 0.0201),
        # Errors of opposite sign do not cancel; one bad step can be within the mean.
        (off({step: (-1) ** step * 0.03 for step in range(1, 101)}), REFERENCE, {}, "DIVERGED", 0.03),
        (off({50: 1.0}), REFERENCE, {}, "ALIGNED", 1 / 80),
        # The 21st step is the first that counts, unless another is given.
        (off({20: 9.0}), REFERENCE, {}, "ALIGNED", 0.0),
        (off({21: 9.0}), REFERENCE, {}, "DIVERGED", 9 / 80),
        (off({20: 9.0}), REFERENCE, {"from_step": 20}, "DIVERGED", 9 / 81),
        (off(0.05), REFERENCE, {"within": 0.06}, "ALIGNED", 0.05),
        # The error is relative to the reference, and a mean equal to the bound is not less, whatever rounding does.
        (even(3.0), even(2.0), {"within": 1.0}, "ALIGNED", 1 / 2),
        (even(2.0), even(3.0), {"within": 1.0}, "ALIGNED", 1 / 3),
        (even(-3.0), even(-2.0), {"within": 1.0}, "ALIGNED", 1 / 2),
        (even(1.5), even(1.0), {"within": 0.5}, "DIVERGED", 1 / 2),
        (even(10.2), even(10.0), {}, "DIVERGED", 0.02),
    ],
)
def test_the_mean_error_decides(a: Curve, b: Curve, options: dict[str, Any], verdict: str, mean: float) -> None:
    found = align(a, b, **options)
    assert (found.verdict, found.published_rule) == (verdict, options == {})
    assert found.mean_error == pytest.approx(mean)
    assert found.compared == (81 if "from_step" in options else 80)


def test_the_largest_error_is_named_with_its_step() -> None:
    found = align(off({20: 9.0, 50: 1.0, 60: 0.5}), REFERENCE)
    assert (found.largest_error, found.largest_error_step) == (pytest.approx(1.0), 50)


@pytest.mark.parametrize(
    "options",
    [{"within": 0.0}, {"within": float("nan")}, {"within": float("inf")}, {"from_step": 0}, {"to_step": 20}],
)
def test_settings_out_of_range_are_usage_errors(options: Any) -> None:
    with pytest.raises(FlagbenchError) as caught:
        align(REFERENCE, REFERENCE, **options)
    assert caught.value.code is ExitCode.USAGE


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
def test_the_step_from_which_every_error_exceeds_the_bound(errors: Any, wanted: int | None) -> None:
    assert align(off(errors), REFERENCE).diverges_from == wanted


def test_an_error_equal_to_the_bound_does_not_exceed_it() -> None:
    assert align(curve(lambda step: 1.5 if step <= 70 else 2.0), even(1.0), within=0.5).diverges_from == 71


@settings(max_examples=60)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=80, unique=True), st.integers(1, 60))
def test_the_excerpt_of_any_steps(steps: list[int], from_step: int) -> None:
    """It has every common step once, and shows which count."""
    found = align(even(2.0, sorted(steps)), even(2.0, range(1, 301)), from_step=from_step)
    assert 1 <= len(found.excerpt) <= 10
    assert (found.excerpt[0].first, found.excerpt[-1].last) == (min(steps), max(steps))
    assert all(after.first > row.last for row, after in zip(found.excerpt, found.excerpt[1:]))
    assert sum(row.counted for row in found.excerpt) >= (found.compared > 0)
    assert all((row.first >= from_step) == row.counted == (row.last >= from_step) for row in found.excerpt)


# Curves of which not every step can be compared


def test_only_common_steps_are_compared_and_others_counted() -> None:
    longer, gaps = even(2.0, range(1, 151)), even(2.0, range(1, 131, 2))
    found = align(longer, gaps)
    assert (found.verdict, found.compared, found.only_in_a, found.only_in_b) == ("ALIGNED", 55, 75, 0)
    assert any("75 steps" in note for note in found.notes)
    found = align(gaps, longer)
    assert (found.only_in_a, found.only_in_b) == (0, 75)


@pytest.mark.parametrize("steps", [range(1, 21), range(101, 200), [1]])
def test_without_a_common_step_there_is_no_answer(steps: Any) -> None:
    found = align(even(1.0, steps), REFERENCE)
    assert (found.verdict, found.compared, found.mean_error) == (Alignment.INCONCLUSIVE, 0, None)
    assert found.verdict.exit_code is ExitCode.INCONCLUSIVE


@pytest.mark.parametrize("share", [0.0, 8.0])
@pytest.mark.parametrize(
    ("steps", "missing"), [(range(1, 22), 79), ([21], 79), ([*range(1, 60), *range(61, 101)], 1)]
)
def test_without_some_steps_of_the_reference(steps: Any, missing: int, share: float) -> None:
    found = align(off(share, steps), REFERENCE)
    assert (found.verdict, found.only_in_b) == (Alignment.INCONCLUSIVE, missing)


def test_a_shorter_curve_is_compared_as_far_as_it_goes() -> None:
    short = off(0.0, range(1, 41))
    found = align(short, REFERENCE, to_step=40)
    assert (found.verdict, found.compared, found.published_rule) == (Alignment.ALIGNED, 20, False)
    assert align(short, REFERENCE, to_step=41).verdict is Alignment.INCONCLUSIVE
    longer = align(REFERENCE, short)
    assert (longer.verdict, longer.compared, longer.only_in_a) == (Alignment.ALIGNED, 20, 60)


def test_losses_that_a_long_record_does_not_have_are_missing() -> None:
    cut = replace(off(0.0, range(1, 41)), cut=60)
    for a in (REFERENCE, cut):
        found = align(a, replace(cut, name="b"))
        assert (found.verdict, found.compared, found.only_in_b) == (Alignment.INCONCLUSIVE, 20, 60)
    assert align(cut, REFERENCE, to_step=40).verdict is Alignment.ALIGNED


def test_what_neither_record_says_makes_nothing_aligned() -> None:
    case = CATALOG.cases["distilbert"]
    runs = [of_record(read_record(ROWS / f"run-distilbert-{name}.json")) for name in ("1", "seed")]
    silent, unpublished = (
        [replace(run, record=replace(run.record, conditions=dict.fromkeys(names, "not published"))) for run in runs]
        for names in ((), runs[0].record.conditions)
    )
    found = align(*silent, case, within=1.0)
    assert (found.verdict, any("seed" in note for note in found.notes)) == (Alignment.INCONCLUSIVE, True)
    for pair in ((runs[0], unpublished[1]), (unpublished[1], runs[0])):
        assert align(*pair, case, within=1.0).verdict is Alignment.NOT_COMPARABLE


def without(step: int, loss: float | None = None) -> Curve:
    """REFERENCE with another loss at a step, one that is not finite if none is given."""
    return curve(lambda number: loss if number == step else REFERENCE.losses[number])


@pytest.mark.parametrize(
    ("a", "b", "side"),
    [
        (without(30), REFERENCE, "A"),
        (REFERENCE, without(30), "B"),
        *((REFERENCE, without(30, zero), "") for zero in (0.0, -0.0, 5e-324)),
    ],
)
def test_a_loss_without_a_relative_error_is_invalid(a: Curve, b: Curve, side: str) -> None:
    found = align(a, b)
    assert (found.verdict, found.mean_error) == (Alignment.INVALID, None)
    assert "step 30" in found.reason
    assert not side or f"of {side} " in found.reason


def test_a_step_that_does_not_count_may_be_without_an_error() -> None:
    found = align(without(5), REFERENCE)
    assert (found.verdict, any("step 5" in note for note in found.notes)) == (Alignment.ALIGNED, True)


def test_a_curve_that_ends_in_no_number_diverges_from_there() -> None:
    a = curve(lambda step: None if step > 90 else REFERENCE.losses[step])
    assert align(a, REFERENCE).diverges_from == 91


def noticed(a: Callable[[int], float], b: Callable[[int], float], word: str) -> bool:
    return any(word in note for note in align(curve(a), curve(b, name="b")).notes)


def test_steps_counted_from_another_number_are_noticed() -> None:
    def loss(step: int) -> float:
        return 5.0 + (step * 7919 % 13) / 10

    def smooth(step: int) -> float:
        return 100.0 - step / 10

    assert noticed(loss, lambda step: loss(step - 1) * 1.005, "s+1")
    assert not noticed(loss, lambda step: loss(step) * 1.1, "check")
    # A falling curve that is too high is a little closer to the step before.
    assert not noticed(smooth, lambda step: smooth(step) * 1.01, "check")


def test_equal_curves_may_be_copies() -> None:
    assert noticed(lambda step: 1 / step, lambda step: 1 / step, "copies")
    assert not noticed(lambda step: 1.001 / step, lambda step: 1 / step, "copies")
