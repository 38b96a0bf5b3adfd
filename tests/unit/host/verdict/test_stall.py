"""One step that took many times as long as the others: a verdict names it, and in what its time went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from flagbench.report import verdict_table
from flagbench.verdict import Verdict, VerifyResult, verify_baseline
from flagbench.verdict.explain import explain
from flagbench.verdict.stall import Stall, find_counted_time, find_stall
from flagbench_cases.shared.spool import Step
from flagbench_core.case_kinds import TRAIN
from flagbench_core.evidence.document import WINDOW, read_evidence
from honest import CLAIMS, Pace, honest_record

from .conftest import CASE, CLAIM, Raw, made, read, verified

TESTED = "records"
SLOW = 5
"""The rank that stalls; seven others wait for it."""
At = Callable[[Step, float], Step]
"""A step, made longer by so many seconds."""


def computing(step: Step, seconds: float) -> Step:
    longer = {name: getattr(step, name) + seconds for name in ("host", "device", "first_collective")}
    return step._replace(**longer)


def on_host(step: Step, seconds: float) -> Step:
    return step._replace(host=step.host + seconds)


def loading(step: Step, seconds: float) -> Step:
    return step._replace(data_wait=step.data_wait + seconds)


def copying(step: Step, seconds: float) -> Step:
    return step._replace(to_device=step.to_device + seconds)


def waiting(step: Step, seconds: float) -> Step:
    """What the others do meanwhile."""
    longer = {name: getattr(step, name) + seconds for name in ("host", "device", "collective_wait")}
    return step._replace(**longer)


def numbered(change: Callable[[int, int, Step], Step]) -> Callable[[int, Step], Step]:
    """A change by rank and step, counted from 0, as one that gets the steps of each rank in order."""
    seen: Counter[int] = Counter()

    def of_next(rank: int, step: Step) -> Step:
        seen[rank] += 1
        return change(rank, seen[rank] - 1, step)

    return of_next


def stalled(at: At, *steps: int, seconds: float = 20.0, count: int = 130, **fields: Any) -> Raw:
    """A run of CLAIM with steps of 0.132 s, some of which, counted from 0, are longer on one rank."""

    def change(rank: int, number: int, step: Step) -> Step:
        if number not in steps:
            return step
        return at(step, seconds) if rank == SLOW else waiting(step, seconds)

    return honest_record(CLAIM, Pace(noise=0.01), count=count, change=numbered(change), **fields)


def stall_of(raw: Raw, metric: str = "p_core_host") -> Stall | None:
    window = read_evidence(raw["evidence"]).step_range(TRAIN, WINDOW)
    return find_stall(window, *find_counted_time(metric, window))


def named(result: VerifyResult) -> list[str]:
    """What the rule says."""
    return [finding.message for finding in result.findings if finding.rule == "stalled-step"]


@pytest.mark.parametrize(
    ("at", "column"),
    [(computing, "device"), (loading, "data_wait"), (copying, "to_device"), (on_host, "host")],
)
def test_the_step_the_rank_and_where_its_time_went(at: At, column: str) -> None:
    raw = stalled(at, 89)
    found = stall_of(raw)
    assert found is not None
    assert (found.first, found.last, found.rank, found.column, found.others) == (90, 90, SLOW, column, 0)
    assert (found.seconds, found.usual) == (pytest.approx(20.13, abs=0.01), pytest.approx(0.132, abs=0.001))
    assert found.share == pytest.approx(20 / (20 + 110 * 0.132), abs=0.005)
    result = verified(raw)
    assert (result.verdict, named(result)) == (Verdict.INCONCLUSIVE, [str(found)])
    assert str(found) in verdict_table([read(raw)], result).splitlines()[0]


def test_a_rank_that_is_late_for_the_next_step_stalled_before_it() -> None:
    """The others wait for it on their devices one step later."""

    def change(rank: int, number: int, step: Step) -> Step:
        if rank == SLOW:
            return step._replace(after=20.0) if number == 89 else step
        return waiting(step, 20.0) if number == 90 else step

    found = stall_of(honest_record(CLAIM, change=numbered(change), count=130))
    assert found is not None
    assert (found.first, found.rank, found.column) == (91, SLOW, "after")


@pytest.mark.parametrize(("count", "interval"), [(900, True), (1800, False)])
def test_a_stall_is_named_whether_the_window_has_an_interval_or_not(count: int, interval: bool) -> None:
    """In the longer window the other steps alone would decide, so that the window is refused."""
    result = verified(stalled(loading, 700, count=count))
    (gate,) = (metric for metric in result.metrics if metric.name == CASE.gate)
    assert gate.ratio is not None
    assert (result.verdict, gate.ratio.ci95 is not None, len(named(result))) == (Verdict.INCONCLUSIVE, interval, 1)


def test_of_a_large_job_the_block_of_steps_is_named() -> None:
    """More than 16,000 steps of all ranks are blocks of two steps."""
    found = stall_of(stalled(loading, 700, count=2100))
    assert found is not None
    assert (found.first, found.last, found.rank, found.column) == (701, 702, SLOW, "data_wait")
    assert (found.seconds, found.usual) == (pytest.approx(20.26, abs=0.02), pytest.approx(0.264, abs=0.002))


def test_of_several_stalls_the_longest_is_named_and_the_others_are_counted() -> None:
    found = stall_of(stalled(loading, 60, 89, 100))
    assert found is not None
    assert (found.others, found.lost) == (2, pytest.approx(60, abs=0.1))


@pytest.mark.parametrize(
    ("seconds", "count", "is_named"),
    [
        (1.0, 130, False),  # less than ten times the median step
        (1.3, 130, True),
        (1.3, 1800, False),  # less than 1 % of the window
    ],
)
def test_a_stall_that_costs_little_is_not_named(seconds: float, count: int, is_named: bool) -> None:
    raw = stalled(loading, 89, seconds=seconds, count=count)
    assert (stall_of(raw) is not None, len(named(verified(raw)))) == (is_named, is_named)


def test_a_wait_that_the_metric_does_not_count_is_no_stall_of_it() -> None:
    """p_core counts steps alone, p_train the waits of its ranks, too."""
    alone = CLAIMS["distilbert/a100-1x1-fp32-bs96"]
    change = numbered(lambda rank, number, step: loading(step, 20.0) if number == 89 else step)
    raw = honest_record(alone, change=change, count=130)
    assert stall_of(raw, "p_core_host") is stall_of(raw, "p_core") is None
    found = stall_of(raw, "p_train")
    assert found is not None
    assert (found.first, found.rank, found.column) == (90, None, "data_wait")


def test_a_stall_of_the_baseline_is_told_as_its_own() -> None:
    sound, disturbed = made(), stalled(computing, 89, record_id="made-up-before", run_id="made-up-before")
    result = verify_baseline([read(sound)], read(disturbed), CASE)
    assert [message.partition("step")[0] for message in named(result)] == ["baseline: "]


@pytest.mark.parametrize(("at", "cause"), [(computing, "stall"), (loading, "data_wait")])
def test_explain_counts_its_time_once(at: At, cause: str) -> None:
    """A data wait is among those of all steps."""
    slow, healthy = read(stalled(at, 89, record_id="made-up-slow", run_id="made-up-slow")), read(made())
    found = explain([slow], verify_baseline([slow], healthy, CASE), CASE, [healthy])
    assert found.gap is not None
    assert [(each.name, each.gap) for each in found.causes] == [(cause, pytest.approx(1.0, abs=0.05))]
    assert found.unexplained == pytest.approx(0.0, abs=0.05)
