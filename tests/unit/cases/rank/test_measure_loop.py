"""Repeats of operations on a clock that moves only when told to: how many, which are kept, what is absent and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from flagbench_cases.contract import Isolated, Measurement, MeasureWorkload, Operation
from flagbench_cases.rank import matmul_peak, measure_loop, repeats
from flagbench_cases.rank.device import CpuDevice
from flagbench_cases.rank.measure_loop import MeasureLoop, MeasurePlan, RoofsLoop
from flagbench_cases.rank.repeats import Repeater, Times
from flagbench_cases.shared.spool import RankSpool, SpoolReader
from unit.cases.rank.toy_loop import Device, Time

pytestmark = pytest.mark.image


@pytest.fixture
def clock(time: Time, monkeypatch: pytest.MonkeyPatch) -> Time:
    for module in (measure_loop, repeats):
        monkeypatch.setattr(module, "now", time)
    return time


def operation(
    time: Time, seconds: float, size: int = 1000, drift: float = 0.0, error: str = "", kind: type = RuntimeError
) -> Operation:
    """An operation that takes so long, and each time by a share longer."""
    last = [seconds]

    def start() -> None:
        if error:
            raise kind(error + "\nand a stack")
        time.seconds += last[0]
        last[0] *= 1 + drift

    return Operation({"operation": "copy", "bytes": size}, lambda: start)


class Toy(MeasureWorkload):
    def __init__(self, *wanted: Measurement) -> None:
        self.wanted = wanted

    def measurements(self) -> Sequence[Measurement]:
        return self.wanted

    def describe(self) -> dict[str, Any]:
        return {}


def measure(
    folder: Path,
    *wanted: Measurement,
    seconds: float = 100.0,
    gather: Callable[[Any], list[Any]] = repeats.gather_one,
    iterations: dict[str, int] | None = None,
) -> tuple[dict[str, Any], SpoolReader]:
    spool = RankSpool(str(folder), 0)
    loop = MeasureLoop(Toy(*wanted), MeasurePlan(20, seconds, iterations or {}), spool, Repeater(Device(), gather))
    spool.reserve(loop.capacity)
    return loop.run(), SpoolReader(str(folder), 0)


def test_roofs_are_facts_and_no_steps(tmp_path: Path, clock: Time) -> None:
    spool = RankSpool(str(tmp_path), 0)
    wanted = [Measurement(name, [operation(clock, 0.005)]) for name in ("copy", "other")]
    RoofsLoop(Toy(*wanted), MeasurePlan(20, 9.0, names=("copy",)), spool, Repeater(Device())).run()
    (fact,) = facts_of(reader := SpoolReader(str(tmp_path), 0), "roof")
    assert (fact["name"], fact["operations"], len(fact["times"])) == ("copy", 4, 20)
    assert fact["times"][0] == pytest.approx([0.02, 0.02, 0.0])
    assert reader.steps() == facts_of(reader, "pass") == []


def facts_of(reader: SpoolReader, kind: str) -> list[dict[str, Any]]:
    return [fact for fact in reader.facts() if fact["kind"] == kind]


def test_steady_repeats_end_after_as_many_again(tmp_path: Path, clock: Time) -> None:
    timing, reader = measure(tmp_path, Measurement("copy", [operation(clock, 0.005)]))
    steps = reader.steps()
    assert len(steps) == 20
    assert {round(step.device, 9) for step in steps} == {0.02}  # four operations
    assert {step.samples for step in steps} == {4}
    (one,) = facts_of(reader, "pass")
    assert (one["name"], one["first_step"], one["steps"]) == ("copy", 0, 20)
    assert one["seconds"] == pytest.approx(20 * 0.02)
    assert 40 * 0.02 < timing["measure"] < 50 * 0.02


def test_unsteady_repeats_end_with_their_time(tmp_path: Path, clock: Time) -> None:
    timing, reader = measure(tmp_path, Measurement("copy", [operation(clock, 0.05, drift=0.01)]), seconds=10.0)
    assert len(reader.steps()) == 20
    assert 10 < timing["measure"] < 15


def test_published_iterations_are_made_in_full(tmp_path: Path, clock: Time) -> None:
    wanted = Measurement("copy", [operation(clock, 0.05)]), Measurement("other", [operation(clock, 0.05)])
    timing, reader = measure(tmp_path, *wanted, seconds=10.0, iterations={"copy": 500})
    steps = reader.steps()
    assert [step.samples for step in steps] == [5] * 100 + [1] * 20
    assert 500 * 0.05 < timing["measure"] < 510 * 0.05 + 5


def isolated(time: Time, cleared: float, seconds: float) -> Measurement:
    """A product of so many seconds after a buffer was cleared in as many as given."""
    start = Isolated(operation(time, cleared).prepare(), operation(time, seconds).prepare())
    return Measurement("mamf_bf16", [Operation({"operation": "copy", "bytes": 1000}, lambda: start)])


def test_an_isolated_operation_is_timed_without_what_clears(tmp_path: Path, clock: Time) -> None:
    _, reader = measure(tmp_path, isolated(clock, 0.01, 0.0001404))
    steps = reader.steps()
    assert [step.samples for step in steps] == [1] * 100
    # 140.4 microseconds each; whole ones are written.
    assert {round(step.device * 1e6, 3) for step in steps} == {140, 141}
    assert sum(step.device for step in steps) == pytest.approx(100 * 0.0001404, abs=1e-6)


def test_mamf_leaves_out_the_first_fifty_of_its_products(tmp_path: Path, clock: Time) -> None:
    """ml-engineering 744d01e1, compute/accelerator/benchmarks/mamf-finder.py:392-393: 100 iterations after 50."""
    made: list[float] = []

    def multiply() -> None:
        made.append(0.002 if len(made) < 50 else 0.001)
        clock.seconds += made[-1]

    class Counting(Repeater):
        def repeat_isolated(self, operation: Isolated, *numbers: Any) -> list[Times]:
            made.clear()  # those by which the loop decided whether there is time
            return super().repeat_isolated(operation, *numbers)

    product = Operation({"operation": "copy", "bytes": 1000}, lambda: Isolated(lambda: None, multiply))
    spool = RankSpool(str(tmp_path), 0)
    loop = MeasureLoop(Toy(Measurement("mamf_bf16", [product])), MeasurePlan(20, 100.0), spool, Counting(Device()))
    spool.reserve(loop.capacity)
    loop.run()
    assert len(made) == 150
    assert [step.device for step in SpoolReader(str(tmp_path), 0).steps()] == pytest.approx([0.001] * 100)


def test_isolated_operations_without_time_for_all_are_absent(tmp_path: Path, clock: Time) -> None:
    _, reader = measure(tmp_path, isolated(clock, 0.01, 0.01), seconds=2.0)
    assert [fact["name"] for fact in facts_of(reader, "absent")] == ["mamf_bf16"]


def heated(folder: Path, *wanted: Measurement, heat_seconds: float) -> tuple[dict[str, Any], SpoolReader]:
    spool = RankSpool(str(folder), 0)
    plan = MeasurePlan(20, 6.0, heat_seconds=heat_seconds)
    loop = MeasureLoop(Toy(*wanted), plan, spool, Repeater(Device()))
    spool.reserve(loop.capacity)
    return loop.run(), SpoolReader(str(folder), 0)


def test_products_heat_the_device_once_beside_the_time(tmp_path: Path, clock: Time) -> None:
    first, second = isolated(clock, 0.0001, 0.001), isolated(clock, 0.0001, 0.001)._replace(name="mamf_fp8")
    timing, reader = heated(tmp_path, first, second, heat_seconds=30.0)
    seconds = [fact["measured"]["heated_seconds"] for fact in facts_of(reader, "pass")]
    assert seconds == pytest.approx([30.0, 30.0], abs=0.2)
    assert seconds[0] == seconds[1]
    assert len(reader.steps()) == 200
    assert 32.0 < timing["measure"] < 33.0  # 1 s each, although 150 products take 0.2 s


def test_what_is_no_such_product_is_not_heated(tmp_path: Path, clock: Time) -> None:
    timing, reader = heated(tmp_path, Measurement("copy", [operation(clock, 0.005)]), heat_seconds=30.0)
    assert "heated_seconds" not in facts_of(reader, "pass")[0]["measured"]
    assert timing["measure"] < 2


@pytest.mark.parametrize("kind", [RuntimeError, ValueError])
def test_what_fails_or_takes_too_long_is_absent(tmp_path: Path, clock: Time, kind: type) -> None:
    lacking, slow = operation(clock, 1.0, error="no such kernel", kind=kind), operation(clock, 30.0)
    _, reader = measure(tmp_path, Measurement("a", [lacking]), Measurement("b", [slow]), seconds=20.0)
    absent = {fact["name"]: fact["reason"] for fact in facts_of(reader, "absent")}
    assert absent["a"] == "no such kernel"
    assert "30" in absent["b"]
    assert not reader.steps()


def test_what_would_take_too_long_is_not_begun(tmp_path: Path, clock: Time) -> None:
    trial = operation(clock, 0.01, 1000)
    long = operation(clock, 1000.0, 100_000_000)._replace(trial=trial)
    timing, reader = measure(tmp_path, Measurement("a", [long]), seconds=20.0)
    assert "1e+03" in facts_of(reader, "absent")[0]["reason"]
    assert timing["measure"] < 1


def test_an_operation_that_another_rank_lacks_is_absent(tmp_path: Path, clock: Time) -> None:
    def gather(value: Any) -> list[Any]:
        return [value, "no such kernel"] if value is None else [value, value]

    _, reader = measure(tmp_path, Measurement("a", [operation(clock, 0.01)]), gather=gather)
    assert [fact["reason"] for fact in facts_of(reader, "absent")] == ["no such kernel"]


def test_the_fastest_candidate_is_measured(tmp_path: Path, clock: Time) -> None:
    sizes = [operation(clock, 0.02, 1000), operation(clock, 0.03, 2000), operation(clock, 0.02, 900)]
    _, reader = measure(tmp_path, Measurement("best", sizes))
    (one,) = facts_of(reader, "pass")
    assert one["measured"] == {"operation": "copy", "bytes": 2000, "tried": 3}


def test_a_candidate_that_slows_down_is_not_the_fastest(tmp_path: Path, clock: Time) -> None:
    sizes = [operation(clock, 0.02, 1000), operation(clock, 0.02, 1010, drift=0.001)]
    _, reader = measure(tmp_path, Measurement("best", sizes))
    assert facts_of(reader, "pass")[0]["measured"]["bytes"] == 1000


@pytest.mark.parametrize(("threads", "size", "drift", "steady"), [(1, 384, 0.0, True), (2, 1024, 0.01, False)])
def test_a_ceiling_says_whether_it_was_steady(
    threads: int, size: int, drift: float, steady: bool, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "now", time)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(matmul_peak, "product", lambda *_: operation(time, 0.02, drift=drift).prepare())
    found = matmul_peak.measure(CpuDevice(), "fp32")
    assert found["flops"] == pytest.approx(2 * size**3 / 0.02, rel=0.3)
    assert (found["precision"], found["steady"]) == ("fp32", steady)
