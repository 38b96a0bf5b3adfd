"""The inference loop: which passes it makes, what it times, and what it leaves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from flagbench_cases.contract import INFER, VALIDATE, Evaluation, InferWorkload, Work
from flagbench_cases.rank import infer_loop
from flagbench_cases.rank.infer_loop import InferLoop, InferPlan
from flagbench_cases.rank.stopwatch import HostClock
from flagbench_cases.record.evidence import Evidence
from flagbench_cases.record.measured import Pass, find_finished_passes, find_unfinished_pass
from flagbench_cases.shared.errors import CaseError
from flagbench_cases.shared.spool import RankSpool, SpoolReader, Step
from flagbench_core.exit_codes import ExitCode
from unit.cases.rank.toy_loop import Device, NoCollectives, Time
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image
WHOLE = InferPlan(warmup_steps=1, window_steps=None)
SIZES = {VALIDATE: 2, INFER: 4}


class Toy(InferWorkload):
    """Passes of two and four batches that let time pass."""

    def __init__(self, time: Time, losses: Sequence[Any] = (2.0,), sizes: dict[str, int] = SIZES) -> None:
        self.time, self.losses, self.sizes = time, losses, sizes
        self.asked: list[str] = []
        self.run: list[tuple[str, int]] = []

    def setup(self) -> None:
        pass

    def describe(self) -> dict[str, Any]:
        return {}

    def passes(self) -> Sequence[str]:
        return tuple(self.sizes)

    def steps(self, name: str) -> int:
        return self.sizes[name]

    def batches(self, name: str) -> Iterator[tuple[str, int]]:
        for number in range(self.sizes[name]):
            self.time.seconds += 1.0
            yield name, number

    def to_device(self, batch: Any) -> Any:
        self.time.seconds += 0.5
        return batch

    def infer(self, batch: tuple[str, int]) -> Any:
        self.run.append(batch)
        self.time.seconds += 0.25
        return self.losses[len(self.run) % len(self.losses)]

    def work(self, batch: Any) -> Work:
        return Work(3, 4, 30, 20, 600.0, 400.0)

    def result(self, name: str) -> Evaluation | None:
        self.asked.append(name)
        self.time.seconds += 16.0  # in no clock
        return Evaluation(0.5, 0.5, 6, None) if name == VALIDATE else None


@pytest.fixture
def clock(time: Time, monkeypatch: pytest.MonkeyPatch) -> Time:
    monkeypatch.setattr(infer_loop, "now", time)
    return time


def infer(
    folder: Path, workload: Toy, plan: InferPlan = WHOLE, counts: bool = True, device: Any = None
) -> tuple[dict[str, Any], list[Step], list[dict[str, Any]]]:
    spool = RankSpool(str(folder), 0)
    spool.reserve(50)
    timing = InferLoop(workload, plan, spool, device or Device(), NoCollectives(), counts).run()
    reader = SpoolReader(str(folder), 0)
    return timing, reader.steps(), reader.facts()


def test_a_whole_run_makes_every_pass_once(tmp_path: Path, clock: Time) -> None:
    toy = Toy(clock)
    timing, steps, facts = infer(tmp_path, toy)
    assert toy.run == [(VALIDATE, 0), (VALIDATE, 1), (INFER, 0), (INFER, 1), (INFER, 2), (INFER, 3)]
    assert toy.asked == [VALIDATE, INFER]
    assert timing == {VALIDATE: 2 * 1.75, INFER: 4 * 1.75}
    assert [(s.data_wait, s.to_device, s.host, s.device) for s in steps] == [(1.0, 0.5, 0.25, 0.25)] * 6
    assert find_finished_passes(Evidence({0: steps}, facts, {}, None, None)) == [
        Pass(VALIDATE, 0, 2, {0: 3.5}),
        Pass(INFER, 2, 4, {0: 7.0}),
    ]
    (evaluation,) = [fact for fact in facts if fact["kind"] == "evaluation"]
    assert (evaluation["pass"], evaluation["accuracy"], evaluation["steps"]) == (VALIDATE, 0.5, 2)
    windows = [(fact["name"], fact["steps"], fact["seconds"]) for fact in facts if fact["kind"] == "window"]
    assert windows == [(VALIDATE, 1, 0.25), (INFER, 3, 0.25 + 2 * 1.75)]  # after a step of warm-up each


def test_the_pass_in_which_a_run_ended(tmp_path: Path, clock: Time) -> None:
    _, steps, facts = infer(tmp_path, Toy(clock))

    def without(*names: str) -> Evidence:
        left = [fact for fact in facts if fact["kind"] != "pass" or fact["name"] not in names]
        return Evidence({0: steps}, left, {}, None, None)

    assert find_unfinished_pass(without(), 6) is None
    assert find_unfinished_pass(without(INFER), 4) == Pass(INFER, 2, 2, {})
    assert find_unfinished_pass(without(INFER), 2) is None
    assert find_unfinished_pass(without(VALIDATE, INFER), 1) == Pass(VALIDATE, 0, 1, {})


def test_a_window_is_of_the_measured_pass(tmp_path: Path, clock: Time) -> None:
    toy = Toy(clock)
    _, steps, _ = infer(tmp_path, toy, InferPlan(warmup_steps=2, window_steps=5))
    assert [number for _, number in toy.run] == [0, 1, 2, 3, 0, 1, 2]
    assert {name for name, _ in toy.run} == {INFER}
    assert toy.asked == []
    assert len(steps) == 7


def test_a_rank_counted_elsewhere_counts_nothing(tmp_path: Path, clock: Time) -> None:
    _, steps, _ = infer(tmp_path, Toy(clock), counts=False)
    assert {(s.samples, s.published_samples, s.tokens, s.flops_executed) for s in steps} == {(0.0, 0.0, 0.0, 0.0)}
    assert {s.host for s in steps} == {0.25}


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path, clock: Time) -> None:
    with refuses(CaseError, "step 2", code=ExitCode.INVALID):
        infer(tmp_path, Toy(clock, losses=(2.0, 2.0, 2.0, float("nan"))))
    assert len(SpoolReader(str(tmp_path), 0).steps()) == 3


class LateDevice(Device):
    """A device that reaches the end of a step only when the next one is queued."""

    class Clock(HostClock):
        queued = 0

        def mark(self) -> int:
            self.queued += 1
            return self.queued

        def reached(self, mark: int) -> bool:
            return mark < self.queued

        def seconds(self, start: int, end: int) -> float:
            return float(end - start)

    def __init__(self) -> None:
        super().__init__(self.Clock())


def test_losses_on_the_device_are_read_when_it_has_them(tmp_path: Path, clock: Time) -> None:
    losses = [torch.tensor(float(value)) for value in range(6)]
    _, steps, _ = infer(tmp_path, Toy(clock, losses=losses), device=LateDevice())
    assert [step.loss for step in steps] == [1.0, 2.0, 3.0, 4.0, 5.0, 0.0]


@pytest.mark.parametrize(("device", "after"), [(Device(), 3), (LateDevice(), 4)], ids=["in time", "late"])
def test_a_loss_on_the_device_that_is_not_finite_ends_the_run(
    tmp_path: Path, clock: Time, device: Any, after: int
) -> None:
    good, bad = torch.tensor(2.0), torch.tensor(float("nan"))
    with refuses(CaseError, "step 2", code=ExitCode.INVALID):
        infer(tmp_path, Toy(clock, losses=(good, good, good, bad, good, good, good)), device=device)
    assert len(SpoolReader(str(tmp_path), 0).steps()) == after
