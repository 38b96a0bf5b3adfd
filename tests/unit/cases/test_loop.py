"""The loop: how long it trains, what it measures, and that measuring makes no step wait for the device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from flagbench_cases import clock as clock_module
from flagbench_cases import loop as loop_module
from flagbench_cases.clock import CudaClock, HostClock
from flagbench_cases.collectives import CollectiveProbe
from flagbench_cases.errors import DataError, ExitCode
from flagbench_cases.loop import Evaluation, Loop, Plan, Work, Workload, measure
from flagbench_cases.spool import RankSpool, SpoolReader, Step

pytestmark = pytest.mark.image

DRAIN_EVERY = CudaClock.drain_every
WINDOW = Plan(max_epochs=10, warmup_steps=2, window_steps=5, target_acc=0.9, initial_evaluation=True)
FULL = Plan(max_epochs=3, warmup_steps=2, window_steps=None, target_acc=0.9, initial_evaluation=True)


class Time:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Device:
    """Counts how often the loop waits for it."""

    def __init__(self, clock: Any = None) -> None:
        self.clock = clock if clock is not None else HostClock()
        self.waits: list[str] = []
        self.where = "outside a step"

    def synchronize(self) -> None:
        self.waits.append(self.where)
        if hasattr(self.clock, "finish"):
            self.clock.finish()


class Toy(Workload):
    """Four steps an epoch that do nothing but let time pass."""

    def __init__(self, time: Time | None = None, accuracies: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8)) -> None:
        self.time = time or Time()
        self.accuracies = list(accuracies)
        self.epochs: list[int] = []
        self.last: list[bool] = []
        self.trained: list[tuple[int, int]] = []
        self.made = 0
        self.device: Device | None = None
        self.probe: Any = None
        self.per_epoch = 4

    def steps_per_epoch(self) -> int:
        return self.per_epoch

    def batches(self, epoch: int) -> Iterator[int]:
        self.epochs.append(epoch)
        for number in range(self.per_epoch):
            self.time.seconds += 1.0
            self.made += 1
            yield number

    def to_device(self, batch: int) -> int:
        self.time.seconds += 0.5
        return batch

    def step(self, batch: int) -> float:
        self.trained.append((self.epochs[-1], batch))
        if self.device is not None:
            self.device.where = "in a step"
        self.time.seconds += 0.25
        if self.probe is not None:
            self.probe.backward(self.time)
        if self.device is not None:
            self.device.where = "outside a step"
        return 2.0

    def work(self, batch: int) -> Work:
        self.time.seconds += 8.0  # bookkeeping, which no column may count
        return Work(3, 4, 30, 20, 600.0, 400.0)

    def evaluate(self, last: bool) -> Evaluation:
        self.time.seconds += 16.0
        self.last.append(last)
        accuracy = self.accuracies.pop(0)
        return Evaluation(accuracy, accuracy + 0.01, 872, deciding=accuracy)


class NoCollectives:
    """One rank: there is nothing to mark."""

    def take(self) -> None:
        return None


def train(
    folder: Path, workload: Toy, plan: Plan, device: Device | None = None, probe: Any = None
) -> tuple[dict[str, Any], SpoolReader]:
    spool = RankSpool(str(folder), 0)
    spool.reserve(plan.capacity(workload.steps_per_epoch()))
    timing = Loop(workload, plan, spool, device or Device(), probe or NoCollectives()).run()
    return timing, SpoolReader(str(folder), 0)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(loop_module, "now", made)
    monkeypatch.setattr(clock_module, "now", made)
    monkeypatch.setattr(loop_module, "DRAIN_SECONDS", float("inf"))
    return made


def test_a_window_is_the_warm_up_and_the_measured_steps(tmp_path: Path) -> None:
    workload = Toy()
    timing, reader = train(tmp_path, workload, WINDOW)
    assert len(reader.steps()) == 2 + 5
    assert workload.epochs == [0, 1]  # as many epochs as the window needs
    assert workload.made == 7  # and no batch that nobody trains on
    assert timing["converged"] is None
    assert timing["eval"] == timing["eval_initial"] == 0.0
    assert [f["name"] for f in reader.facts() if f["kind"] == "phase"] == ["warmup", "train"]


def test_a_window_may_end_with_an_epoch(tmp_path: Path) -> None:
    workload = Toy()
    _, reader = train(tmp_path, workload, WINDOW._replace(window_steps=6))
    assert len(reader.steps()) == 8
    assert workload.epochs == [0, 1]


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
            return super().evaluate(last)._replace(accuracy=0.5, deciding=0.95)

    timing, reader = train(tmp_path, Published(), FULL)
    assert timing["converged"] is True
    assert len(reader.steps()) == 4


def test_the_published_run_ends_at_the_limit_of_epochs(tmp_path: Path) -> None:
    workload = Toy()
    timing, reader = train(tmp_path, workload, FULL)
    assert timing["converged"] is False
    assert len(reader.steps()) == 12
    phases = [f["name"] for f in reader.facts() if f["kind"] == "phase"]
    assert phases[:5] == ["eval", "warmup", "train", "eval", "train"]


def test_without_a_target_there_is_nothing_to_converge_to(tmp_path: Path) -> None:
    timing, reader = train(tmp_path, Toy(accuracies=(1.0,) * 4), FULL._replace(target_acc=None))
    assert timing["converged"] is None
    assert len(reader.steps()) == 12


def test_the_initial_evaluation_is_optional(tmp_path: Path) -> None:
    workload = Toy(accuracies=(0.9,))
    _, reader = train(tmp_path, workload, FULL._replace(initial_evaluation=False))
    assert [f["epoch"] for f in reader.facts() if f["kind"] == "evaluation"] == [0]


def evaluated(reader: SpoolReader) -> list[tuple[int, int]]:
    return [(f["epoch"], f["steps"]) for f in reader.facts() if f["kind"] == "evaluation"]


def test_an_evaluation_may_come_every_so_many_steps(tmp_path: Path) -> None:
    workload = Toy(accuracies=(0.1,) * 5)
    _, reader = train(tmp_path, workload, FULL._replace(evaluate_every=3))
    assert evaluated(reader) == [(-1, 0), (0, 3), (1, 6), (2, 9), (2, 12)]
    assert workload.last == [False, False, False, False, True]


def test_such_an_evaluation_ends_the_run_within_an_epoch(tmp_path: Path) -> None:
    workload = Toy(accuracies=(0.1, 0.2, 0.95))
    timing, reader = train(tmp_path, workload, FULL._replace(evaluate_every=3))
    assert timing["converged"] is True
    assert len(reader.steps()) == 6
    assert workload.made == 6


def test_a_limit_of_steps_ends_within_an_epoch(tmp_path: Path) -> None:
    workload = Toy(accuracies=(0.1,) * 4)
    timing, reader = train(tmp_path, workload, FULL._replace(evaluate_every=3, max_steps=7))
    assert timing["converged"] is False
    assert (len(reader.steps()), workload.made) == (7, 7)
    assert evaluated(reader) == [(-1, 0), (0, 3), (1, 6), (1, 7)]  # the last one where the run ends
    assert workload.last == [False, False, False, True]


def test_a_limit_within_an_epoch_is_evaluated_where_epochs_are(tmp_path: Path) -> None:
    workload = Toy(accuracies=(0.1,) * 4)
    _, reader = train(tmp_path, workload, FULL._replace(max_steps=7))
    assert evaluated(reader) == [(-1, 0), (0, 4), (1, 7)]
    assert workload.last[-1]


def test_from_the_limit_on_every_step_is_evaluated(tmp_path: Path) -> None:
    """The publisher evaluates once as many samples are trained as the limit says, and ends once it is more."""
    workload = Toy(accuracies=(0.1,) * 5)
    _, reader = train(tmp_path, workload, FULL._replace(evaluate_every=4, max_steps=7, evaluate_from=6))
    assert evaluated(reader) == [(-1, 0), (0, 4), (1, 6), (1, 7)]


def test_an_evaluation_may_ask_for_no_accuracy(tmp_path: Path) -> None:
    class Validated(Toy):
        def evaluate(self, last: bool) -> Evaluation:
            return Evaluation(None, None, 5, None, [measure("val_loss", 1.5, "nats", "of 5 blocks")])

    _, reader = train(tmp_path, Validated(), FULL)
    assert len(reader.steps()) == 12
    (first, *_) = [f for f in reader.facts() if f["kind"] == "evaluation"]
    assert first["accuracy"] is None
    assert first["extra"] == [{"name": "val_loss", "value": 1.5, "unit": "nats", "note": "of 5 blocks"}]


def test_a_further_number_that_is_none_ends_the_run(tmp_path: Path) -> None:
    class Broken(Toy):
        def evaluate(self, last: bool) -> Evaluation:
            return super().evaluate(last)._replace(extra=[measure("f1", float("nan"), "fraction", "")])

    with pytest.raises(FloatingPointError, match="no finite f1"):
        train(tmp_path, Broken(), FULL)


@pytest.mark.parametrize("first", [1, 4, 5, 8])
def test_a_resumed_run_does_what_was_left(tmp_path: Path, first: int) -> None:
    whole, rest = Toy(accuracies=(0.1,) * 4), Toy(accuracies=(0.1,) * 4)
    for folder, workload, plan in (("a", whole, FULL), ("b", rest, FULL._replace(first_step=first))):
        (tmp_path / folder).mkdir()
        _, reader = train(tmp_path / folder, workload, plan)
    assert rest.trained == whole.trained[first:]
    assert len(reader.steps()) == 12 - first
    assert evaluated(reader) == [(e, s) for e, s in [(0, 4), (1, 8), (2, 12)] if s > first]
    assert rest.last[-1]


def test_checkpoints_come_after_the_evaluation_of_their_step_and_off_the_clock(tmp_path: Path, time: Time) -> None:
    order: list[tuple[str, int]] = []

    class Told(Toy):
        def evaluate(self, last: bool) -> Evaluation:
            order.append(("evaluation", len(self.trained)))
            return super().evaluate(last)

    def checkpoint(at: int) -> None:
        order.append(("checkpoint", at))
        time.seconds += 100.0

    workload, plan = Told(time), FULL._replace(checkpoint_every=2, initial_evaluation=False, max_epochs=2)
    spool = RankSpool(str(tmp_path), 0)
    spool.reserve(plan.capacity(4))
    probe: Any = NoCollectives()
    timing = Loop(workload, plan, spool, Device(), probe, checkpoint).run()
    kinds = [("checkpoint", 2), ("evaluation", 4), ("checkpoint", 4), ("checkpoint", 6), ("evaluation", 8)]
    assert order == [*kinds, ("checkpoint", 8)]
    assert timing["checkpoint"] == 400.0
    assert timing["train"] == 8 * (1.0 + 0.5 + 0.25 + 8.0) + 2 * 16.0
    assert {step.data_wait for step in SpoolReader(str(tmp_path), 0).steps()} == {1.0}


def test_an_epoch_that_gives_no_batch_is_an_error_and_no_endless_loop(tmp_path: Path) -> None:
    class Dry(Toy):
        def batches(self, epoch: int) -> Iterator[int]:
            return iter(())

    with pytest.raises(DataError, match="gave no batch"):
        train(tmp_path, Dry(), WINDOW)


def test_each_column_counts_its_own_time_only(tmp_path: Path, time: Time) -> None:
    _, reader = train(tmp_path, Toy(time), WINDOW)
    for number, step in enumerate(reader.steps()):
        # 1 s to make a batch, 0.5 to hand it over, 0.25 in the step; 8 s of bookkeeping are nobody's.
        assert (step.data_wait, step.to_device, step.host, step.device) == (1.0, 0.5, 0.25, 0.25), number
        assert step[6:] == (2.0, 3.0, 4.0, 30.0, 20.0, 600.0, 400.0, 0.0)
        assert step.first_collective != step.first_collective  # NaN: there was no collective


def test_training_time_holds_its_evaluations_but_not_the_initial_one(tmp_path: Path, time: Time) -> None:
    timing, _ = train(tmp_path, Toy(time), FULL)
    step = 1.0 + 0.5 + 0.25 + 8.0
    assert timing["train"] == 12 * step + 3 * 16.0
    assert timing["eval"] == 3 * 16.0
    assert timing["eval_initial"] == 16.0


def test_an_epoch_without_steps_is_refused(tmp_path: Path) -> None:
    workload = Toy()
    workload.per_epoch = 0
    with pytest.raises(DataError, match="no step") as caught:
        train(tmp_path, workload, WINDOW)
    assert caught.value.code == ExitCode.DATA


def test_an_accuracy_that_is_no_number_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(FloatingPointError, match="epoch -1"):
        train(tmp_path, Toy(accuracies=(float("nan"),)), FULL)


class LateClock:
    """A device's time line: marks are reached only when it gets to them, and are reused like events.

    Every misuse is an error: asking the time between marks not reached, or using a mark that was given back.
    """

    drain_every = CudaClock.drain_every

    def __init__(self, time: Time, behind: int) -> None:
        self.time = time
        self.behind = behind
        self.marked = 0
        self.created = 0
        self.asked = 0
        self.finished = 0
        self.pool: list[dict[str, Any]] = []

    def mark(self) -> dict[str, Any]:
        if self.pool:
            mark = self.pool.pop()
        else:
            mark = {}
            self.created += 1
        self.marked += 1
        mark.update(number=self.marked, at=self.time.seconds, live=True)
        return mark

    def reached(self, mark: dict[str, Any]) -> bool:
        self.asked += 1
        assert mark["live"]
        return mark["number"] <= max(self.finished, self.marked - self.behind)

    def seconds(self, start: dict[str, Any], end: dict[str, Any]) -> float:
        assert start["live"]
        assert end["live"]
        assert end["number"] <= max(self.finished, self.marked - self.behind), "waited for a mark"
        return end["at"] - start["at"]

    def release(self, marks: list[dict[str, Any]]) -> None:
        for mark in marks:
            assert mark["live"], "given back twice"
            mark["live"] = False
            self.pool.append(mark)

    def finish(self) -> None:
        self.finished = self.marked


LONG = Plan(max_epochs=1, warmup_steps=20, window_steps=480, target_acc=None, initial_evaluation=False)


@pytest.mark.parametrize("behind", [0, 50, 10**9], ids=["prompt", "50 marks late", "not before the end"])
def test_marks_are_read_when_reached_and_never_waited_for(tmp_path: Path, time: Time, behind: int) -> None:
    late = LateClock(time, behind)
    device = Device(late)
    _, reader = train(tmp_path, Toy(time), LONG, device)
    steps = reader.steps()
    assert len(steps) == 500
    assert [step.device for step in steps] == [0.25] * 500
    if behind < 10**9:
        # Two marks a step, in use only until the next look: the pool does not grow with the run.
        assert late.created <= 2 * DRAIN_EVERY + behind + 2
        assert late.asked < 2 * 500


@pytest.mark.parametrize(
    ("every_seconds", "answered"),
    [
        # Looked at once, after 100 steps of 2 marks: the last 60 marks were still to come, so 30 steps were left.
        (float("inf"), 70),
        # A step of this workload takes 9.75 s, so every step looks, and 30 are under way.
        (5.0, 120),
    ],
)
def test_a_step_not_reached_yet_reads_as_unknown(
    tmp_path: Path, time: Time, monkeypatch: pytest.MonkeyPatch, every_seconds: float, answered: int
) -> None:
    monkeypatch.setattr(loop_module, "DRAIN_SECONDS", every_seconds)
    late = LateClock(time, behind=60)
    seen: list[Step] = []

    class Peeking(Device):
        def synchronize(self) -> None:
            seen[:] = SpoolReader(str(tmp_path), 0).steps()
            super().synchronize()

    workload = Toy(time)
    workload.per_epoch = 150
    _, reader = train(tmp_path, workload, LONG._replace(window_steps=130), Peeking(late))
    known = [step.device == step.device for step in seen]
    assert known == [True] * answered + [False] * (150 - answered)
    assert all(step.device == 0.25 for step in reader.steps())


@pytest.fixture
def forbidden(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of every call that would make the host wait for the device, as they are called."""
    called: list[str] = []

    def record(name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            called.append(name)
            raise AssertionError("%s in a step" % name)

        return call

    monkeypatch.setattr(torch.cuda, "synchronize", record("torch.cuda.synchronize"))
    for owner, names in (
        (torch.cuda.Event, ("synchronize", "wait")),
        (torch.cuda.Stream, ("synchronize", "wait_stream")),
        (torch.Tensor, ("item", "cpu", "tolist", "numpy", "__bool__", "__float__", "__int__", "to")),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, record("%s.%s" % (owner.__name__, name)))
    return called


def test_the_loop_adds_no_wait_to_a_step(tmp_path: Path, time: Time, forbidden: list[str]) -> None:
    late = LateClock(time, behind=30)
    device = Device(late)
    workload = Toy(time)
    workload.device = device
    _, reader = train(tmp_path, workload, LONG, device)
    assert len(reader.steps()) == 500
    assert forbidden == []
    assert device.waits == ["outside a step"] * 2  # training's own borders, and no other
    assert late.marked == 2 * 500


def test_a_published_run_waits_at_its_borders_only(tmp_path: Path, forbidden: list[str]) -> None:
    device = Device()
    train(tmp_path, Toy(), FULL, device)
    assert forbidden == []
    assert len(device.waits) == 2 + 2 * 4  # training, and four evaluations


def test_the_watch_for_waits_would_see_one(forbidden: list[str]) -> None:
    with pytest.raises(AssertionError, match=r"Tensor\.item"):
        torch.ones(1).item()
    assert forbidden == ["Tensor.item"]


class Gradients(CollectiveProbe):
    """A backward pass of some parameters, without a process group; time passes between their gradients."""

    count = 3

    def backward(self, time: Time) -> None:
        if not hasattr(self, "parameters"):
            self.parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(self.count)]
            self.attach(self.parameters)
        value = torch.ones(1)
        for parameter in self.parameters:
            value = Passing.apply(value * parameter, time)
        value.backward()
        time.seconds += 4.0
        self.backward_done()


class Passing(torch.autograd.Function):
    """Identity; its backward takes a second."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, time: Time) -> torch.Tensor:
        ctx.time = time
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.time.seconds += 1.0
        return gradient, None


@pytest.mark.parametrize(("count", "expected"), [(3, (1.0, 4.0)), (2, (1.0, 4.0)), (1, (1.0, 4.0))])
def test_the_probe_tells_own_work_from_waiting(
    tmp_path: Path, time: Time, count: int, expected: tuple[float, float]
) -> None:
    late = LateClock(time, behind=11)
    probe = Gradients(late)
    probe.count = count
    workload = Toy(time)
    workload.probe = probe
    _, reader = train(tmp_path, workload, LONG, Device(late), probe)
    for step in reader.steps():
        # The step's own 0.25 s come before its first gradient.
        assert (step.first_collective - 0.25, step.collective_wait) == expected
        assert step.device == 0.25 + count + 4.0
    assert late.created <= 5 * DRAIN_EVERY + 20


def test_a_step_without_collectives_leaves_no_marks_behind(time: Time) -> None:
    probe = CollectiveProbe(LateClock(time, 0))
    probe.backward_done()
    assert probe.take() is None
    probe.first = probe._clock.mark()  # a bucket, but no end of a backward pass: gradients accumulate
    assert probe.take() is None
    assert (probe.first, probe.last, probe.done) == (None, None, None)
