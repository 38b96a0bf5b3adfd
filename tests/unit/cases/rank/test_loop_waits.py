"""Measuring makes no step wait for the device: marks are read when they are reached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from flagbench_cases.rank import step_timer
from flagbench_cases.rank.probe import CollectiveProbe
from flagbench_cases.rank.stopwatch import CudaClock
from flagbench_cases.rank.train_loop import TrainPlan
from flagbench_cases.shared.spool import SpoolReader, Step
from unit.cases.rank.toy_loop import FULL, Device, Time, Toy, train

pytestmark = pytest.mark.image

DRAIN_EVERY = CudaClock.drain_every


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


LONG = TrainPlan(max_epochs=1, warmup_steps=20, window_steps=480, target_acc=None, initial_evaluation=False)


@pytest.mark.parametrize("behind", [0, 50, 10**9], ids=["prompt", "50 marks late", "not before the end"])
def test_marks_are_read_when_reached(tmp_path: Path, time: Time, behind: int) -> None:
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
    monkeypatch.setattr(step_timer, "DRAIN_SECONDS", every_seconds)
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
    assert late.marked == 2 * 500 + 2  # those of its window


def test_a_published_run_waits_at_its_borders_only(tmp_path: Path, forbidden: list[str]) -> None:
    device = Device()
    train(tmp_path, Toy(), FULL, device)
    assert forbidden == []
    assert len(device.waits) == 2 + 2 * 4  # training, and four evaluations


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


@pytest.mark.parametrize(("count", "expected"), [(3, (1.0, 4.0)), (1, (1.0, 4.0))])
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


class Synced(torch.nn.Module):
    """Makes the buffers of its module equal on all ranks, for two seconds, before it calls that."""

    def __init__(self, module: torch.nn.Module, time: Time) -> None:
        super().__init__()
        self.module, self.time = module, time

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.time.seconds += 2.0
        return self.module(value)


def test_a_rank_waits_for_buffers_too(tmp_path: Path, time: Time) -> None:
    """In every forward pass that is trained; not in evaluations, nor where the module is called by itself."""
    late = LateClock(time, behind=11)
    module = torch.nn.Identity()
    network = Synced(module, time)

    class Buffers(Gradients):
        def backward(self, time: Time) -> None:
            with torch.no_grad():
                network(torch.ones(1))
            module(torch.ones(1))
            network(torch.ones(1))
            super().backward(time)

    probe, workload = Buffers(late), Toy(time)
    probe.attach_buffers(network, module)
    workload.probe = probe
    _, reader = train(tmp_path, workload, LONG, Device(late), probe)
    assert {(step.first_collective, step.collective_wait) for step in reader.steps()} == {
        (0.25 + 2.0 + 1.0, 4.0 + 2.0)
    }
    assert probe.take_syncs() == []
    assert late.created <= 7 * DRAIN_EVERY + 20


@pytest.mark.parametrize("behind", [0, 50])
def test_passes_and_the_time_between_them(tmp_path: Path, time: Time, behind: int) -> None:
    """Four passes of a second each, with two seconds between them; the rest of a step is neither."""

    class Passes(CollectiveProbe):
        def backward(self, time: Time) -> None:
            for number in range(4):
                time.seconds += 2.0 if number else 5.0
                self.pass_begins()
                time.seconds += 1.0
                self.pass_ends()

    late = LateClock(time, behind)
    probe, workload = Passes(late), Toy(time)
    workload.probe = probe
    _, reader = train(tmp_path, workload, LONG, Device(late), probe)
    assert {(step.computing, step.pipeline) for step in reader.steps()} == {(4.0, 4.0 + 3 * 2.0)}
    assert probe.take_passes() == []
    assert late.created <= 10 * DRAIN_EVERY + 60


def test_a_step_without_collectives_leaves_no_marks_behind(time: Time) -> None:
    probe = CollectiveProbe(LateClock(time, 0))
    probe.backward_done()
    assert probe.take_gradients() is None
    probe.first = probe._clock.mark()  # a bucket, but no end of a backward pass: gradients accumulate
    assert probe.take_gradients() is None
    assert (probe.first, probe.last, probe.done) == (None, None, None)
