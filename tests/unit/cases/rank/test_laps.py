"""Laps of a soak on a clock that moves only when told to: what each keeps, and what ends them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flagbench_cases.contract import Measurement
from flagbench_cases.rank import laps, measure_loop, repeats
from flagbench_cases.rank.laps import LapLoop, RankLap
from flagbench_cases.rank.measure_loop import MeasurePlan
from flagbench_cases.rank.repeats import Repeater
from flagbench_cases.shared.spool import RankSpool, SpoolReader
from unit.cases.rank.test_measure_loop import Toy, facts_of, operation
from unit.cases.rank.toy_loop import Device, Time

pytestmark = pytest.mark.image

BITS = {"sum": "0000"}


@pytest.fixture
def clock(time: Time, monkeypatch: pytest.MonkeyPatch) -> Time:
    for module in (laps, measure_loop, repeats):
        monkeypatch.setattr(module, "now", time)
    return time


class Computing(Toy):
    """Its fixed operation has these results, one after the other; then the last one."""

    def __init__(self, wanted: list[Measurement], digests: list[str]) -> None:
        super().__init__(*wanted)
        self.digests = digests

    def results(self) -> dict[str, str]:
        return {"sum": self.digests.pop(0) if len(self.digests) > 1 else self.digests[0]}


def soak(
    folder: Path,
    wanted: list[Measurement],
    count: int = 3,
    digests: tuple[str, ...] = ("0000",),
    gather: Callable[[Any], list[Any]] = repeats.gather_one,
) -> SpoolReader:
    spool = RankSpool(str(folder), 0)
    plan = MeasurePlan(20, 10.0, fill_share=True)
    workload = Computing(wanted, [*digests])
    loop = LapLoop(workload, plan, spool, Repeater(Device(), gather), count, BITS, ("a device", "1.0"))
    spool.reserve(loop.capacity)
    loop.run()
    return SpoolReader(str(folder), 0)


def test_each_lap_takes_its_seconds_and_keeps_a_median(tmp_path: Path, clock: Time) -> None:
    reader = soak(tmp_path, [Measurement("copy", [operation(clock, 0.005)])])
    found = facts_of(reader, "lap")
    assert [fact["lap"] for fact in found] == [1, 2, 3]
    assert [fact["seconds"] for fact in found] == pytest.approx([10.0] * 3, rel=0.05)
    assert [fact["rates"] for fact in found] == [{"copy": [400_000]}] * 3  # 1,000 bytes read and written in 5 ms
    assert [fact["other_bits"] for fact in found] == [[]] * 3


def test_the_steps_are_those_of_the_first_lap(tmp_path: Path, clock: Time) -> None:
    reader = soak(tmp_path, [Measurement("copy", [operation(clock, 0.005)])])
    assert len(reader.steps()) == 20
    assert [fact["name"] for fact in facts_of(reader, "pass")] == ["copy"]


def test_the_fastest_of_several_is_looked_for_in_the_first_lap(tmp_path: Path, clock: Time) -> None:
    several = Measurement("best", [operation(clock, 0.02), operation(clock, 0.01)])
    reader = soak(tmp_path, [Measurement("copy", [operation(clock, 0.005)]), several])
    assert [fact["name"] for fact in facts_of(reader, "pass")] == ["copy", "best"]
    assert [[*fact["rates"]] for fact in facts_of(reader, "lap")] == [["copy"]] * 3


def test_other_bits_end_the_laps(tmp_path: Path, clock: Time) -> None:
    reader = soak(tmp_path, [Measurement("copy", [operation(clock, 0.005)])], digests=("0000", "0001", "0000"))
    found = facts_of(reader, "lap")
    assert [fact["lap"] for fact in found] == [1, 2]
    assert found[1]["other_bits"] == [{"name": "sum", "rank": 0}]


def test_a_lap_has_the_rates_of_all_ranks(tmp_path: Path, clock: Time) -> None:
    def gather(value: Any) -> list[Any]:
        if not isinstance(value, RankLap):
            return [value, value]
        half_rates = {name: rate // 2 for name, rate in value.rates.items()}
        return [value, value._replace(rates=half_rates)]

    reduced = operation(clock, 0.005)._replace(measured={"operation": "all_reduce", "bytes": 1000})
    wanted = [Measurement("copy", [operation(clock, 0.005)]), Measurement("all_reduce", [reduced])]
    (fact,) = facts_of(soak(tmp_path, wanted, count=1, gather=gather), "lap")
    assert fact["rates"] == {"copy": [400_000, 200_000], "all_reduce": [100_000]}


def test_what_is_absent_is_said_once(tmp_path: Path, clock: Time) -> None:
    reader = soak(tmp_path, [Measurement("copy", [operation(clock, 1.0, error="no such kernel")])])
    assert [fact["name"] for fact in facts_of(reader, "absent")] == ["copy"]


def test_what_cannot_be_measured_takes_no_time_from_the_others(tmp_path: Path, clock: Time) -> None:
    lacking = Measurement("lacking", [operation(clock, 1.0, error="no such kernel")])
    reader = soak(tmp_path, [Measurement("copy", [operation(clock, 0.005)]), lacking])
    assert [fact["seconds"] for fact in facts_of(reader, "lap")] == pytest.approx([5.0, 10.0, 10.0], rel=0.05)


def test_a_median_is_of_the_whole_lap(tmp_path: Path, clock: Time) -> None:
    """An operation that becomes slower: the last 20 repeats would be 1.6 times as slow as the median."""
    drifting = Measurement("copy", [operation(clock, 0.02, drift=0.002)])
    (fact,) = facts_of(soak(tmp_path, [drifting], count=1), "lap")
    assert 2000 / 0.0335 < fact["rates"]["copy"][0] < 2000 / 0.0265


def test_progress_is_in_laps(tmp_path: Path, clock: Time) -> None:
    progress = soak(tmp_path, [Measurement("copy", [operation(clock, 0.005)])]).progress()
    assert progress is not None
    assert (progress.phase, progress.done, progress.total) == ("measure", 3, 3)
