"""Two loss curves by the published rule: |A - B| / |B|, its mean over the steps from the 21st on, under 2 %."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from catalogs import CATALOG
from flagbench.errors import FlagbenchError
from flagbench.records.model import Layout, Losses, Quality, Record, Status
from flagbench.verdict.align import SAME_CURVE, Alignment, Curve, align_curves, read_curve, record_curve
from flagbench_core.exit_codes import ExitCode

from .conftest import BASE, CASE, REPLAYS, edit

STEPS = range(1, 101)
HALF = Layout(dp=4, tp=2, pp=1)
"""Of BASE's eight devices, four read batches of their own."""
BATCH = BASE.conditions["batch_size"]


def curve(of_step: Callable[[int], float | None], steps: Iterable[int] = STEPS, name: str = "a") -> Curve:
    return Curve(name, {step: of_step(step) for step in steps})


def even(loss: float, steps: Iterable[int] = STEPS) -> Curve:
    """The same loss at every step."""
    return curve(lambda step: loss, steps)


REFERENCE = curve(lambda step: 10.0 - step / 20, name="b")


def off(relative: Mapping[int, float] | float, steps: Iterable[int] = STEPS) -> Curve:
    """REFERENCE, off by a share, of every step or of some."""
    share = (lambda step: relative) if isinstance(relative, float) else lambda step: relative.get(step, 0.0)
    return curve(lambda step: REFERENCE.losses[step] * (1 + share(step)), steps)


def without(step: int, loss: float | None = None) -> Curve:
    """REFERENCE with another loss at a step, one that is not finite if none is given."""
    return curve(lambda number: loss if number == step else REFERENCE.losses[number])


@pytest.mark.parametrize(
    ("a", "b", "options", "verdict", "mean"),
    [
        (off(0.0199), REFERENCE, {}, "ALIGNED", 0.0199),
        (off(-0.0201), REFERENCE, {}, "DIVERGED", 0.0201),
        # Errors of opposite sign do not cancel; one bad step can be within the mean.
        (off({step: (-1) ** step * 0.03 for step in STEPS}), REFERENCE, {}, "DIVERGED", 0.03),
        (off({50: 1.0}), REFERENCE, {}, "ALIGNED", 1 / 80),
        # The 21st step is the first that counts, unless another is given.
        (off({20: 9.0}), REFERENCE, {}, "ALIGNED", 0.0),
        (off({21: 9.0}), REFERENCE, {}, "DIVERGED", 9 / 80),
        (off({20: 9.0}), REFERENCE, {"from_step": 20}, "DIVERGED", 9 / 81),
        (off(0.05), REFERENCE, {"within": 0.06}, "ALIGNED", 0.05),
        # The error is relative to the reference, and a mean equal to the bound is not less, whatever rounding does.
        (even(-3.0), even(-2.0), {"within": 1.0}, "ALIGNED", 1 / 2),
        (even(2.0), even(3.0), {"within": 1.0}, "ALIGNED", 1 / 3),
        (even(10.2), even(10.0), {}, "DIVERGED", 0.02),
        # Steps of the reference that A lacks leave the mean unknown; steps that only A has do not count.
        (off(8.0, range(1, 22)), REFERENCE, {}, "INCONCLUSIVE", 8.0),
        (off(0.0, [*range(1, 60), *range(61, 101)]), REFERENCE, {}, "INCONCLUSIVE", 0.0),
        (off(0.0, range(1, 41)), REFERENCE, {"to_step": 40}, "ALIGNED", 0.0),
        (off(0.0, range(1, 41)), REFERENCE, {"to_step": 41}, "INCONCLUSIVE", 0.0),
        (even(2.0, range(1, 151)), even(2.0, range(1, 101, 2)), {}, "ALIGNED", 0.0),
        (even(1.0, range(1, 21)), REFERENCE, {}, "INCONCLUSIVE", None),
        (REFERENCE, REFERENCE, {"to_step": 20}, "INCONCLUSIVE", None),
        # A loss that counts has to be finite, and in the reference not zero.
        (without(30), REFERENCE, {}, "INVALID", None),
        (REFERENCE, without(30), {}, "INVALID", None),
        (REFERENCE, without(30, -0.0), {}, "INVALID", None),
        (REFERENCE, without(30, 5e-324), {}, "INVALID", None),
        (without(5), REFERENCE, {}, "ALIGNED", 0.0),
    ],
)
def test_the_mean_error_decides(a: Curve, b: Curve, options: Any, verdict: str, mean: float | None) -> None:
    found = align_curves(a, b, **options)
    assert (found.verdict, found.published_rule) == (verdict, options == {})
    assert found.mean_error == (None if mean is None else pytest.approx(mean))


def test_what_was_compared_is_counted() -> None:
    found = align_curves(off({20: 9.0, 50: 1.0, 60: 0.5}, range(1, 91)), REFERENCE)
    assert (found.compared, found.missing) == (70, 10)
    assert (found.largest_error, found.largest_error_step) == (pytest.approx(1.0), 50)


def test_losses_that_a_long_record_lacks_are_missing() -> None:
    cut = replace(off(0.0, range(1, 41)), cut=60)
    for a in (REFERENCE, cut):
        found = align_curves(a, replace(cut, name="b"))
        assert (found.verdict, found.compared, found.missing) == (Alignment.INCONCLUSIVE, 20, 60)
    assert align_curves(cut, replace(cut, name="b"), to_step=40).verdict is Alignment.ALIGNED


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ({}, None),
        ({100: 0.1}, 100),
        # It comes back once, or at the end.
        ({step: 0.1 for step in range(60, 101) if step != 80}, 81),
        (dict.fromkeys(range(60, 100), 0.1), None),
        (dict.fromkeys(STEPS, 0.1), 1),
        (dict.fromkeys(range(91, 101), math.nan), 91),
    ],
)
def test_the_step_from_which_every_error_is_above(errors: Any, expected: int | None) -> None:
    a = off(errors)
    finite = Curve("a", {step: None if math.isnan(loss) else loss for step, loss in a.losses.items()})
    assert align_curves(finite, REFERENCE).diverges_from == expected


# Records


def trained(losses: Curve = REFERENCE, name: str = "fixture-run-a", **fields: Any) -> Curve:
    """A run of BASE with these losses."""
    record = edit(record_id=name, **fields)
    quality = replace(record.quality, losses=Losses(0, len(STEPS), tuple(losses.losses.values())))
    return record_curve(replace(record, quality=quality))


REFERENCE_RUN = trained(name="fixture-run-b")


def with_data(run: Curve, digest: str) -> Curve:
    quality = {**run.record.raw["quality"], "data": {"train_sha256": digest}}
    return replace(run, record=replace(run.record, raw={**run.record.raw, "quality": quality}))


@pytest.mark.parametrize(
    ("fields", "verdict", "differing"),
    [
        ({}, "ALIGNED", []),
        # Other data, seed, model or optimisation is another curve.
        ({"conditions": {"seed": 7}}, "NOT_COMPARABLE", ["seed"]),
        ({"conditions": {"seed": None}}, "NOT_COMPARABLE", ["seed"]),
        ({"conditions": {"learning_rate": 1e-3}}, "NOT_COMPARABLE", ["learning_rate"]),
        # How it was computed is listed and compared; other hardware and software is what the rule is for.
        ({"conditions": {"precision": "bf16"}}, "ALIGNED", ["precision"]),
        ({"conditions": {"device_model": "MetaX C500", "torch": "2.0", "driver": "1"}}, "ALIGNED", []),
        # The samples of a whole step have to be equal.
        ({"layout": HALF, "conditions": {"batch_size": 2 * BATCH}}, "ALIGNED", []),
        ({"layout": HALF, "conditions": {"gradient_accumulation_steps": 2}}, "ALIGNED", []),
        ({"layout": HALF}, "NOT_COMPARABLE", ["samples_per_step"]),
        ({"status": Status("failed", "train", "a rank failed", 4)}, "INVALID", []),
    ],
)
def test_what_of_two_runs_has_to_be_equal(fields: dict[str, Any], verdict: str, differing: list[str]) -> None:
    found = align_curves(trained(off(0.01), **fields), REFERENCE_RUN, CASE)
    assert (found.verdict, [condition.name for condition in found.conditions]) == (verdict, differing)
    assert found.mean_error == pytest.approx(0.01)
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (told["schema"], told["exit_code"]) == ("alignment/v1", int(found.verdict.exit_code))


def test_what_neither_record_says_leaves_it_open() -> None:
    runs = [trained(off(0.01), conditions={"seed": None}), trained(name="b", conditions={"seed": None})]
    assert align_curves(*runs, CASE).verdict is Alignment.INCONCLUSIVE
    assert align_curves(*runs, CASE, within=0.005).verdict is Alignment.DIVERGED


def test_training_sets_are_told_apart_by_their_hash() -> None:
    one, other = with_data(REFERENCE_RUN, "00"), with_data(trained(), "ff")
    assert align_curves(other, one, CASE).verdict is Alignment.NOT_COMPARABLE
    assert align_curves(with_data(trained(), "00"), one, CASE).verdict is Alignment.ALIGNED


def test_a_file_has_no_conditions() -> None:
    for found in (align_curves(trained(), REFERENCE, CASE), align_curves(off(0.001), REFERENCE_RUN, CASE)):
        assert (found.verdict, found.conditions) == (Alignment.ALIGNED, ())


@pytest.mark.parametrize(
    ("a", "options"),
    [
        (REFERENCE_RUN, {}),
        (trained(case="glm"), {}),
        *((REFERENCE, {"within": w}) for w in (0.0, math.nan, math.inf)),
    ],
    ids=str,
)
def test_what_cannot_be_compared_is_a_usage_error(a: Curve, options: Any) -> None:
    with pytest.raises(FlagbenchError) as caught:
        align_curves(a, REFERENCE_RUN, CASE, **options)
    assert caught.value.code is ExitCode.USAGE


def test_every_case_says_what_its_loss_depends_on() -> None:
    losses = filter(None, (case.metric("loss") for case in CATALOG.cases.values()))
    names = {name for loss in losses for name in loss.depends_on}
    assert {"layout", "attention", "recompute", "precision"} <= SAME_CURVE <= names


@pytest.mark.parametrize("first", [0, 40])
def test_the_steps_of_a_record_are_counted_from_one(first: int) -> None:
    record = replace(BASE, quality=Quality((), losses=Losses(first, 5, (2.5, None, 1))))
    assert record_curve(record) == Curve(BASE.record_id, {first + 1: 2.5, first + 2: None, first + 3: 1}, 2, record)


@pytest.mark.parametrize("losses", [None, Losses(0, 0, ()), Losses(0, 1, (2.5, 2.5))])
def test_a_record_without_losses_has_no_curve(losses: Losses | None) -> None:
    record: Record = edit(quality=Quality((), losses=losses))
    with pytest.raises(FlagbenchError) as caught:
        record_curve(record)
    assert caught.value.code is ExitCode.DATA


# Files


@pytest.mark.parametrize(
    "text",
    [
        "step,loss\n1,6.5\n2,6.25\n3,nan\n",
        "\ufeffStep, Loss \r\n1, 6.5\r\n\r\n2,6.25\r\n3,-Infinity",
        'time,"loss",step\n0.1,6.5,1\n0.2,6.25,2\n0.3,inf,"3"\n',
        '{"step": 1, "loss": 6.5}\n\n{"loss": 6.25, "step": 2, "rate": "\u8f6e"}\n{"step": 3, "loss": NaN}\n',
        '\ufeff{"step": 1, "loss": 6.5}\r\n{"step": 2, "loss": 6.25}\r\n{"step": 3, "loss": null}',
    ],
)
def test_csv_and_json_lines_are_the_same_curve(text: str) -> None:
    assert read_curve(text.encode(), "curve") == Curve("curve", {1: 6.5, 2: 6.25, 3: None})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"step,loss\n",
        b"1,6.5\n2,6.25\n",
        b"step,loss\n1,6,5\n",  # a decimal comma
        b"step,loss\n1\n",
        b"step,loss\n1,6.5\n1,6.5\n",
        b"step,loss\n2,6.5\n1,6.5\n",
        b"step,loss\n0,6.5\n1,6.4\n",
        "step,loss\n\u0661,6.5\n".encode(),
        b'{"step": 1, "loss": true}\n',
        b'{"step": 1, "loss": 2}\n{"step": 2}\n',
        b'{"step": 1, "loss": 2}\n' + b"[" * 100_000 + b"\n",
        b"step,loss\n1,\xff\n",
        b"step,loss\n1," + b"x" * 200_000 + b"\n",
        b"{}",
    ],
)
def test_a_file_that_is_no_curve_is_refused(content: bytes) -> None:
    with pytest.raises(FlagbenchError) as caught:
        read_curve(content, "curve.csv")
    assert caught.value.code is ExitCode.DATA
    assert "curve.csv" in caught.value.message
    assert len(caught.value.message) < 300


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.binary(max_size=80), st.text('step,los\n10.-e{}":inf', max_size=80).map(str.encode)))
def test_any_bytes_are_a_curve_or_refused(content: bytes) -> None:
    try:
        found = read_curve(content, "curve")
    except FlagbenchError:
        return
    assert found.losses
    assert list(found.losses) == sorted(found.losses)
    assert all(loss is None or math.isfinite(loss) for loss in found.losses.values())


def test_a_record_is_told_from_a_curve() -> None:
    whole = json.loads((REPLAYS / "a100-1x8.json").read_bytes())
    for indent in (None, 2):
        found = read_curve(json.dumps(whole, indent=indent).encode(), "record")
        assert found.record is not None
