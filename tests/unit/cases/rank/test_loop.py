"""The loop: how long it trains, when it evaluates and writes checkpoints, and which time is whose."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flagbench_cases.contract import Evaluation, extra_result
from flagbench_cases.shared.errors import CaseError, DataError
from flagbench_cases.shared.spool import SpoolReader, Step
from flagbench_core.evidence.metrics import OWN, PUBLISHED
from flagbench_core.exit_codes import ExitCode
from unit.cases.rank.toy_loop import FULL, WINDOW, Device, Time, Toy, train
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image


def test_a_window_is_the_warm_up_and_the_measured_steps(tmp_path: Path) -> None:
    workload = Toy()
    timing, reader = train(tmp_path, workload, WINDOW)
    assert len(reader.steps()) == 2 + 5
    assert workload.epochs == [0, 1]  # as many epochs as the window needs
    assert workload.made == 7  # and no batch that nobody trains on
    assert timing["converged"] is None
    assert timing["eval"] == timing["eval_initial"] == 0.0
    assert [f["name"] for f in reader.facts() if f["kind"] == "phase"] == ["warmup", "train"]


def test_the_published_run_ends_at_the_target(tmp_path: Path) -> None:
    workload = Toy(accuracies=(0.5, 0.6, 0.9, 0.95))
    timing, reader = train(tmp_path, workload, FULL)
    assert timing["converged"] is True
    assert workload.epochs == [0, 1]
    assert len(reader.steps()) == 8
    evaluations = [f for f in reader.facts() if f["kind"] == "evaluation"]
    assert [(e["epoch"], e["steps"], e["accuracy"]) for e in evaluations] == [(-1, 0, 0.5), (0, 4, 0.6), (1, 8, 0.9)]
    assert evaluations[-1]["published_accuracy"] == pytest.approx(0.91)
    assert evaluations[-1]["counted"] == 872


def test_the_stop_rule_looks_at_the_deciding_accuracy(tmp_path: Path) -> None:
    """The publisher's count may reach the target where each example counted once does not."""

    class Published(Toy):
        def evaluate(self, last: bool) -> Evaluation:
            return super().evaluate(last)._replace(accuracy=0.5, stop_accuracy=0.95)

    timing, reader = train(tmp_path, Published(), FULL)
    assert timing["converged"] is True
    assert len(reader.steps()) == 4


def time_of(step: Step, parts: tuple[str, ...]) -> float:
    """The seconds of those columns."""
    return math.fsum(getattr(step, part) for part in parts)


def evaluated(reader: SpoolReader) -> list[tuple[int, int]]:
    return [(f["epoch"], f["steps"]) for f in reader.facts() if f["kind"] == "evaluation"]


LOW = (0.1,) * 5


@pytest.mark.parametrize(
    ("changes", "accuracies", "converged", "evaluations"),
    [
        ({"target_acc": None}, (1.0,) * 4, None, [(-1, 0), (0, 4), (1, 8), (2, 12)]),
        ({"initial_evaluation": False}, (0.9,), True, [(0, 4)]),
        ({"evaluate_every": 3}, LOW, False, [(-1, 0), (0, 3), (1, 6), (2, 9), (2, 12)]),
        ({"evaluate_every": 3}, (0.1, 0.2, 0.95), True, [(-1, 0), (0, 3), (1, 6)]),
        ({"evaluate_every": 3, "max_steps": 7}, LOW, False, [(-1, 0), (0, 3), (1, 6), (1, 7)]),
        ({"max_steps": 7}, LOW, False, [(-1, 0), (0, 4), (1, 7)]),
        # The publisher evaluates once as many samples are trained as the limit says, and ends once it is more.
        ({"evaluate_every": 4, "max_steps": 7, "evaluate_from": 6}, LOW, False, [(-1, 0), (0, 4), (1, 6), (1, 7)]),
    ],
    ids=["no target", "no first", "every 3", "target in an epoch", "every 3 to 7", "to 7", "each from 6 on"],
)
def test_evaluations_come_when_the_plan_says(
    tmp_path: Path, changes: dict[str, Any], accuracies: Any, converged: Any, evaluations: list[tuple[int, int]]
) -> None:
    workload = Toy(accuracies=accuracies)
    timing, reader = train(tmp_path, workload, FULL._replace(**changes))
    assert evaluated(reader) == evaluations
    assert timing["converged"] is converged
    assert len(reader.steps()) == workload.made == evaluations[-1][1], "no batch that nobody trains on"
    if not converged:  # the last evaluation of a run is known beforehand
        assert workload.last == [False] * (len(evaluations) - 1) + [True]


def test_an_evaluation_may_ask_for_no_accuracy(tmp_path: Path) -> None:
    class Validated(Toy):
        def evaluate(self, last: bool) -> Evaluation:
            return Evaluation(None, None, 5, None, [extra_result("val_loss", 1.5, "nats", "of 5 blocks")])

    _, reader = train(tmp_path, Validated(), FULL)
    assert len(reader.steps()) == 12
    (first, *_) = [f for f in reader.facts() if f["kind"] == "evaluation"]
    assert first["accuracy"] is None
    assert first["extra"] == [{"name": "val_loss", "value": 1.5, "unit": "nats", "note": "of 5 blocks"}]


class Broken(Toy):
    """An additional result of its evaluation is NaN."""

    def evaluate(self, last: bool) -> Evaluation:
        return super().evaluate(last)._replace(extra=[extra_result("f1", float("nan"), "fraction", "")])


@pytest.mark.parametrize(
    ("workload", "named"), [(Broken(), "f1"), (Toy(accuracies=(float("nan"),)), "accuracy")], ids=["f1", "accuracy"]
)
def test_a_result_that_is_no_number_ends_the_run(tmp_path: Path, workload: Toy, named: str) -> None:
    with refuses(CaseError, named, code=ExitCode.INVALID):
        train(tmp_path, workload, FULL)


@pytest.mark.parametrize("first", [1, 4, 8])
def test_a_resumed_run_does_what_was_left(tmp_path: Path, first: int) -> None:
    whole, rest = Toy(accuracies=(0.1,) * 4), Toy(accuracies=(0.1,) * 4)
    for folder, workload, plan in (("a", whole, FULL), ("b", rest, FULL._replace(first_step=first))):
        (tmp_path / folder).mkdir()
        _, reader = train(tmp_path / folder, workload, plan)
    assert rest.trained == whole.trained[first:]
    assert len(reader.steps()) == 12 - first
    assert evaluated(reader) == [(e, s) for e, s in [(0, 4), (1, 8), (2, 12)] if s > first]
    assert rest.last[-1]


def test_checkpoints_are_off_the_clock(tmp_path: Path, time: Time) -> None:
    order: list[tuple[str, int]] = []

    class Told(Toy):
        def evaluate(self, last: bool) -> Evaluation:
            order.append(("evaluation", len(self.trained)))
            return super().evaluate(last)

    def checkpoint(at: int) -> None:
        order.append(("checkpoint", at))
        time.seconds += 100.0

    plan = FULL._replace(checkpoint_every=2, initial_evaluation=False, max_epochs=2)
    timing, reader = train(tmp_path, Told(time), plan, checkpoint=checkpoint)
    kinds = [("checkpoint", 2), ("evaluation", 4), ("checkpoint", 4), ("checkpoint", 6), ("evaluation", 8)]
    assert order == [*kinds, ("checkpoint", 8)]
    assert timing["checkpoint"] == 400.0
    assert timing["train"] == 8 * (1.0 + 0.5 + 0.25 + 8.0) + 2 * 16.0
    assert {step.data_wait for step in reader.steps()} == {1.0}


def window_facts(reader: SpoolReader) -> list[tuple[str, int, float]]:
    return [(f["name"], f["steps"], f["seconds"]) for f in reader.facts() if f["kind"] == "window"]


STEP = 1.0 + 0.5 + 0.25 + 8.0
"""Seconds from one step to the next: its batch, the copy, the step, bookkeeping."""


def test_when_the_window_was_is_told(tmp_path: Path, time: Time) -> None:
    """From the start of its first step on the device; the batch of that step was there before."""
    _, reader = train(tmp_path, Toy(time), WINDOW)
    assert window_facts(reader) == [("train", 5, 5 * STEP - 1.5)]


def test_neither_evaluations_nor_checkpoints_are_in_the_times_of_the_window(tmp_path: Path, time: Time) -> None:
    def checkpoint(at: int) -> None:
        time.seconds += 100.0

    plan = FULL._replace(checkpoint_every=3, max_epochs=2, target_acc=None)
    _, reader = train(tmp_path, Toy(time), plan, checkpoint=checkpoint)
    # Two steps of warm-up and one up to the checkpoint; an evaluation after step 4, a checkpoint after step 6.
    assert window_facts(reader) == [("train", n, n * STEP - 1.5) for n in (1, 1, 2, 2)]


def test_a_window_without_a_warm_up_begins_with_the_first_step(tmp_path: Path, time: Time) -> None:
    _, reader = train(tmp_path, Toy(time), WINDOW._replace(warmup_steps=0))
    assert window_facts(reader) == [("train", 5, 5 * STEP - 1.5)]


@pytest.mark.parametrize("steps", [5, 6])
def test_a_window_has_its_last_checkpoint(tmp_path: Path, time: Time, steps: int) -> None:
    written: list[int] = []
    plan = WINDOW._replace(window_steps=steps, checkpoint_every=2, initial_evaluation=False)
    train(tmp_path, Toy(time), plan, checkpoint=written.append)
    assert written == [2, 4, 6, 8][: (2 + steps) // 2]


class Dry(Toy):
    """Its loader has no batches, although it announced some."""

    def batches(self, epoch: int) -> Iterator[int]:
        return iter(())


def test_an_epoch_without_batches_is_an_error(tmp_path: Path) -> None:
    none = Toy()
    none.per_epoch = 0
    for workload in (Dry(), none):
        with refuses(DataError):
            train(tmp_path, workload, WINDOW)


def test_each_column_counts_its_own_time_only(tmp_path: Path, time: Time) -> None:
    _, reader = train(tmp_path, Toy(time), WINDOW)
    for number, step in enumerate(reader.steps()):
        # 1 s to make a batch, 0.5 to hand it over, 0.25 in the step; 8 s of bookkeeping came after it.
        assert (step.data_wait, step.to_device, step.host, step.device) == (1.0, 0.5, 0.25, 0.25), number
        assert step.after == 8.0
        assert step[7:15] == (2.0, 3.0, 4.0, 30.0, 20.0, 600.0, 400.0, 0.0)
        assert step.first_collective != step.first_collective  # NaN: there was no collective


class LateDevice(Device):
    """Is four seconds behind after each step."""

    def __init__(self, time: Time) -> None:
        super().__init__()
        self.time = time
        self.left = 0.0

    def synchronize(self) -> None:
        super().synchronize()
        self.time.seconds += self.left
        self.left = 0.0


class Logging(Toy):
    """Reads a result from its device after each step, for two seconds; its loader takes one to shut down."""

    late: LateDevice

    def after_step(self) -> None:
        self.time.seconds += 2.0
        self.late.left = 4.0

    def batches(self, epoch: int) -> Iterator[int]:
        yield from super().batches(epoch)
        self.time.seconds += 1.0


@pytest.mark.parametrize(
    # The loader that shuts down after the last evaluation is in no step: the device has nothing to do then.
    ("cadence", "idle"),
    [({}, 0.0), ({"evaluate_every": 3}, 1.0)],
    ids=["after epochs", "within epochs"],
)
def test_own_times_are_training_without_evaluations(
    tmp_path: Path, time: Time, cadence: dict[str, Any], idle: float
) -> None:
    def checkpoint(at: int) -> None:
        time.seconds += 100.0

    plan = FULL._replace(initial_evaluation=False, checkpoint_every=5, target_acc=None, **cadence)
    workload = Logging(time, (0.5,) * 5)
    workload.late = LateDevice(time)
    timing, reader = train(tmp_path, workload, plan, workload.late, checkpoint=checkpoint)
    steps = reader.steps()
    # What the publisher's clock reads: nothing of what comes after a step.
    assert {time_of(step, PUBLISHED) for step in steps} == {1.0 + 0.5 + 0.25}
    assert {step.after for step in steps[:2]} == {2.0 + 8.0}
    assert sum(time_of(step, OWN) for step in steps) == timing["train"] - timing["eval"] - idle


class Ending(Toy):
    """Its loader takes three seconds to end, whenever that is, as one that waits for its workers."""

    def batches(self, epoch: int) -> Iterator[int]:
        try:
            yield from super().batches(epoch)
        finally:
            self.time.seconds += 3.0


def test_the_end_of_the_loader_is_no_part_of_a_window(tmp_path: Path, time: Time) -> None:
    plan = FULL._replace(initial_evaluation=False, target_acc=None, warmup_steps=1, window_steps=2)
    timing, reader = train(tmp_path, Ending(time, (0.5,) * 5), plan)
    steps = reader.steps()
    assert len(steps) == 3
    assert {step.after for step in steps} == {steps[0].after}
    assert sum(time_of(step, OWN) for step in steps) == timing["train"]


def test_training_time_holds_its_evaluations(tmp_path: Path, time: Time) -> None:
    timing, _ = train(tmp_path, Toy(time), FULL)
    step = 1.0 + 0.5 + 0.25 + 8.0
    assert timing["train"] == 12 * step + 3 * 16.0
    assert timing["eval"] == 3 * 16.0
    assert timing["eval_initial"] == 16.0


class Losses(Toy):
    """Its losses are given; `scaled`: the loss scaler leaves out the steps of those that are not finite."""

    def __init__(self, losses: list[float], scaled: bool = False) -> None:
        super().__init__()
        self.losses, self.scaled = losses, scaled

    def step(self, batch: int) -> float:
        super().step(batch)
        return self.losses[len(self.trained) - 1]

    def scaler_skipped(self) -> bool:
        return self.scaled and not math.isfinite(self.losses[len(self.trained) - 1])


@pytest.mark.parametrize("bad", [float("nan"), -float("inf")])
def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path, bad: float) -> None:
    device = Device()
    with pytest.raises(CaseError) as caught:
        train(tmp_path, Losses([1.0] * 4 + [bad] * 96), WINDOW, device)
    assert (caught.value.code, len(SpoolReader(str(tmp_path), 0).steps())) == (ExitCode.INVALID, 5)
    assert device.waits == ["outside a step"], "at the start of training; the steps wait for nothing more"


def test_steps_that_the_scaler_skips_do_not_end_the_run(tmp_path: Path) -> None:
    nan = float("nan")
    _, reader = train(tmp_path, Losses([nan, nan, 1.0, nan, 1.0, 1.0, float("inf")], scaled=True), WINDOW)
    assert len(reader.steps()) == 7
    assert [f["step"] for f in reader.facts() if f["kind"] == "skipped"] == [0, 1, 3, 6]


def test_a_scaler_that_skips_every_step_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(CaseError) as caught:
        train(tmp_path, Losses([1.0] + [float("nan")] * 99, scaled=True), WINDOW)
    assert (caught.value.code, len(SpoolReader(str(tmp_path), 0).steps())) == (ExitCode.INVALID, 4)
