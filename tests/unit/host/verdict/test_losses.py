"""The losses of two records by the published rule: the mean of |B - A| / |A| from the 21st step on is under 2 %."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from catalogs import CATALOG
from flagbench.records.model import Layout, Losses, Quality, Record
from flagbench.verdict.losses import HOW_COMPUTED, Alignment, LossComparison, compare_losses, loss_curve

from .conftest import BASE, CASE, edit

STEPS = 100
HALF = Layout(dp=4, tp=2, pp=1)
"""Of BASE's eight devices, four read batches of their own."""
BATCH = BASE.conditions["batch_size"]

Loss = Callable[[int], float | None]


def expected(step: int) -> float:
    """The loss of the reference."""
    return 10.0 - step / 20


def trained(loss: Loss, steps: int = STEPS, *, first: int = 0, held: int | None = None, **fields: Any) -> Record:
    """A run of BASE of so many steps, after `first` others, with these losses; only the first `held` are recorded."""
    last = steps if held is None else held
    values = tuple(loss(step) for step in range(first + 1, first + last + 1))
    record = edit(record_id="fixture-run-b", **fields)
    return replace(record, quality=replace(record.quality, losses=Losses(first, steps, values)))


REFERENCE = trained(expected)


def off(errors: Mapping[int, float] | float) -> Loss:
    """The loss of the reference, off by a share at every step or at some."""

    def loss(step: int) -> float:
        share = errors if isinstance(errors, float) else errors.get(step, 0.0)
        return expected(step) * (1 + share)

    return loss


def without(missing: int, loss: float | None = None) -> Loss:
    """The loss of the reference with another one at a step, one that is not finite if none is given."""
    return lambda step: loss if step == missing else expected(step)


def compare(a: Record, b: Record) -> LossComparison:
    """The losses of two sound records."""
    comparison = compare_losses(a, b, CASE, [])
    assert comparison is not None
    return comparison


@pytest.mark.parametrize(
    ("losses", "outcome", "mean"),
    [
        (off(0.0199), "ALIGNED", 0.0199),
        (off(-0.0201), "DIVERGED", 0.0201),
        # Errors of opposite sign do not cancel; one bad step can be within the mean.
        (off({step: (-1) ** step * 0.03 for step in range(1, 101)}), "DIVERGED", 0.03),
        (off({50: 1.0}), "ALIGNED", 1 / 80),
        # The 21st step is the first that counts.
        (off({20: 9.0}), "ALIGNED", 0.0),
        (off({21: 9.0}), "DIVERGED", 9 / 80),
        (without(5), "ALIGNED", 0.0),
        (without(30), "INCONCLUSIVE", None),
    ],
)
def test_the_mean_error_decides(losses: Loss, outcome: str, mean: float | None) -> None:
    comparison = compare(REFERENCE, trained(losses))
    assert comparison.outcome == outcome
    assert comparison.errors.mean == (None if mean is None else pytest.approx(mean))


def test_errors_are_relative_to_a() -> None:
    assert compare(trained(lambda step: 2.0), trained(lambda step: 3.0)).errors.mean == 0.5
    assert compare(trained(lambda step: -3.0), trained(lambda step: -2.0)).errors.mean == pytest.approx(1 / 3)


@pytest.mark.parametrize("loss", [None, -0.0, 5e-324])
def test_a_reference_loss_without_a_relative_error_decides_nothing(loss: float | None) -> None:
    comparison = compare(trained(without(30, loss)), REFERENCE)
    assert (comparison.outcome, comparison.errors.mean) == (Alignment.INCONCLUSIVE, None)


@pytest.mark.parametrize(
    ("a", "b", "steps", "missing", "mean"),
    [
        # Steps of A that B does not have leave the mean unknown; steps that only B has do not count.
        (REFERENCE, trained(off(8.0), 21), 1, 79, 8.0),
        (REFERENCE, trained(expected, 20), 0, 80, None),
        (REFERENCE, trained(expected, 60, first=40), 60, 20, 0.0),
        (trained(expected, 40), REFERENCE, 20, 0, 0.0),
        (trained(expected, 20), REFERENCE, 0, 0, None),
        # A long record has only its first losses.
        (REFERENCE, trained(expected, held=40), 20, 60, 0.0),
        (trained(expected, held=40), REFERENCE, 20, 60, 0.0),
    ],
)
def test_all_steps_of_a_count(a: Record, b: Record, steps: int, missing: int, mean: float | None) -> None:
    comparison = compare(a, b)
    assert (comparison.errors.steps, comparison.errors.missing) == (steps, missing)
    assert comparison.errors.mean == (None if mean is None else pytest.approx(mean))
    decided = steps > 0 and missing == 0
    assert comparison.outcome is (Alignment.ALIGNED if decided else Alignment.INCONCLUSIVE)


def test_the_largest_error_is_one_that_counts() -> None:
    errors = compare(REFERENCE, trained(off({20: 9.0, 50: 1.0, 60: 0.5}))).errors
    assert (errors.largest, errors.largest_step) == (pytest.approx(1.0), 50)


@pytest.mark.parametrize(
    ("errors", "step"),
    [
        ({}, None),
        ({100: 0.1}, 100),
        # They meet again once, or at the end.
        ({step: 0.1 for step in range(60, 101) if step != 80}, 81),
        (dict.fromkeys(range(60, 100), 0.1), None),
        (dict.fromkeys(range(1, 101), 0.1), 1),
        (dict.fromkeys(range(91, 101), math.nan), 91),
    ],
)
def test_curves_part_where_every_error_from_there_on_is_above(errors: dict[int, float], step: int | None) -> None:
    def loss(step: int) -> float | None:
        value = off(errors)(step)
        return None if math.isnan(value) else value

    assert compare(REFERENCE, trained(loss)).errors.parts_at == step


@pytest.mark.parametrize(
    ("fields", "outcome", "reason"),
    [
        # Other data, seed, model or optimisation is another curve.
        ({"conditions": {"seed": 7}}, "NOT_COMPARABLE", "seed"),
        ({"conditions": {"seed": None}}, "NOT_COMPARABLE", "seed"),
        ({"conditions": {"learning_rate": 1e-3}}, "NOT_COMPARABLE", "learning_rate"),
        # How it was computed may differ: other hardware and software is what the rule is for.
        ({"conditions": {"precision": "bf16"}}, "ALIGNED", "1 %"),
        ({"conditions": {"device_model": "MetaX C500", "torch": "2.0", "driver": "1"}}, "ALIGNED", "1 %"),
        # The samples of a whole step have to be equal.
        ({"layout": HALF, "conditions": {"batch_size": 2 * BATCH}}, "ALIGNED", "1 %"),
        ({"layout": HALF, "conditions": {"gradient_accumulation_steps": 2}}, "ALIGNED", "1 %"),
        ({"layout": HALF}, "NOT_COMPARABLE", "samples per step"),
    ],
)
def test_what_the_losses_depend_on_has_to_be_equal(fields: dict[str, Any], outcome: str, reason: str) -> None:
    comparison = compare(REFERENCE, trained(off(0.01), **fields))
    assert comparison.outcome == outcome
    assert reason in comparison.reason
    assert comparison.errors.mean == pytest.approx(0.01)


def test_what_neither_record_says_leaves_it_open() -> None:
    unknown = {"conditions": {"seed": None}}
    reference = trained(expected, **unknown)
    assert compare(reference, trained(off(0.01), **unknown)).outcome is Alignment.INCONCLUSIVE
    assert compare(reference, trained(off(0.03), **unknown)).outcome is Alignment.DIVERGED


def test_training_sets_are_told_apart_by_their_hash() -> None:
    def with_data(sha256: str) -> Record:
        raw = {**REFERENCE.raw, "quality": {**REFERENCE.raw["quality"], "data": {"train_sha256": sha256}}}
        return replace(REFERENCE, raw=raw)

    assert compare(with_data("00"), with_data("ff")).outcome is Alignment.NOT_COMPARABLE
    assert compare(with_data("00"), with_data("00")).outcome is Alignment.ALIGNED


def test_an_invalid_record_is_not_aligned_and_has_errors() -> None:
    comparison = compare_losses(REFERENCE, trained(off(0.01)), CASE, ["B: the run failed"])
    assert comparison is not None
    assert (comparison.outcome, comparison.reason) == (Alignment.INVALID, "B: the run failed")
    assert comparison.errors.mean == pytest.approx(0.01)


@pytest.mark.parametrize("losses", [None, Losses(0, 0, ()), Losses(100, 1, (2.5,))])
def test_without_common_steps_nothing_is_compared(losses: Losses | None) -> None:
    other = replace(BASE, quality=Quality((), losses=losses))
    assert compare_losses(REFERENCE, other, CASE, []) is None
    assert compare_losses(other, REFERENCE, CASE, []) is None


def test_steps_are_counted_from_one() -> None:
    record = replace(BASE, quality=Quality((), losses=Losses(40, 5, (2.5, None, 1))))
    assert loss_curve(record) == {41: 2.5, 42: None, 43: 1}


def test_every_case_says_what_its_loss_depends_on() -> None:
    names: set[str] = set()
    for case in CATALOG.cases.values():
        loss = case.metric("loss")
        if loss is not None:
            names |= set(loss.depends_on)
    assert {"layout", "attention", "recompute", "precision"} <= HOW_COMPUTED <= names
