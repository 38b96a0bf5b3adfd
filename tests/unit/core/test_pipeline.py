"""The measured bubble: shares of the time of a pipeline, by rank, stage and job."""

from __future__ import annotations

from typing import Any

import pytest

from flagbench_cases.shared.parallel_layout import Layout
from flagbench_cases.shared.spool import Step
from flagbench_core.evidence import pipeline
from unit.cases.record.runs import NAN, WARMUP, WINDOW, WINDOW_OF_30, bubbles_of, evidence, record_of, step


def taken(computing: float, duration: float) -> Step:
    return step()._replace(computing=computing, pipeline=duration)


def stage(index: int, stages: int, micro_batches: int, seconds: float = 3.0) -> Step:
    """A step of one of several equal stages (1F1B): forward a third of `seconds`, backward two."""
    work = micro_batches * seconds
    return taken(work, work + (stages - 1 - index) * seconds)


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 4), (2, 1), (2, 8), (4, 44)])
def test_equal_stages_have_the_predicted_bubble(stages: int, micro_batches: int) -> None:
    layout = Layout(pp=stages)
    ranks = {rank: [stage(rank, stages, micro_batches)] * 3 for rank in range(stages)}
    found = bubbles_of(ranks, 0, 3, layout)
    predicted = (stages - 1) / (micro_batches + stages - 1)
    assert found == {rank: pytest.approx(predicted) for rank in range(stages)}
    told = pipeline.summarise([*found.values()], layout.pp)
    assert told["measured_bubble"] == pytest.approx(predicted)
    assert told["measured_bubble_of_stages"] == [pytest.approx(predicted)] * stages


def test_a_slow_stage_waits_least_and_makes_the_others_wait() -> None:
    """The second of two stages takes 3 times as long: 4 micro-batches of 1 s and 3 s take 13 s."""
    ranks = {0: [taken(4.0, 13.0)], 1: [taken(12.0, 12.0)]}
    found = bubbles_of(ranks, 0, 1, Layout(pp=2))
    assert found == {0: pytest.approx(9 / 13), 1: pytest.approx(1 / 13)}


def test_only_the_window_is_counted_and_long_steps_weigh_more() -> None:
    ranks = {0: [taken(0.0, 100.0), taken(8.0, 10.0), taken(1.0, 2.0), taken(0.0, 7.0)]}
    assert bubbles_of(ranks, 1, 3, Layout()) == {0: pytest.approx(1 - 9 / 12)}


def test_each_rank_belongs_to_its_own_pipeline() -> None:
    layout = Layout(dp=2, tp=2, pp=2)
    ranks = {}
    for rank in range(layout.world):
        at = layout.coordinates(rank)
        # Each of the four pipelines has a duration of its own; the second stage of each ends early.
        whole = 10.0 * (1 + at.dp + 2 * at.tp)
        ranks[rank] = [taken(whole * (0.5 if at.pp == 0 else 0.75), whole * (1.0 if at.pp == 0 else 0.9))]
    found = bubbles_of(ranks, 0, 1, layout)
    for rank, bubble in found.items():
        assert bubble == pytest.approx((0.5, 0.25)[layout.coordinates(rank).pp])
    told = pipeline.summarise([*found.values()], layout.pp)
    assert told["measured_bubble_of_stages"] == [pytest.approx(0.5), pytest.approx(0.25)]
    assert told["measured_bubble"] == pytest.approx(0.375)


@pytest.mark.parametrize("lacking", [0, 1])
def test_nothing_is_reported_unless_all_was_measured(lacking: int) -> None:
    ranks = {rank: [taken(1.0, 2.0)] * 3 for rank in range(2)}
    ranks[lacking] = [*ranks[lacking][:2], taken(NAN, NAN)]
    layout = Layout(pp=2)
    assert bubbles_of(ranks, 0, 2, layout) != {}
    assert bubbles_of(ranks, 0, 3, layout) == {}
    assert bubbles_of(ranks, 3, 3, layout) == {}
    assert pipeline.summarise([], 2) == {}


def measured(computing: tuple[float, float]) -> dict[str, Any]:
    """A record of two stages; steps of the warm-up only wait."""
    found = evidence()
    found.facts.append({"kind": "training", "rank": 0, "time": 1.0, "updates": 40, "predicted_bubble": 0.2})
    steps = {rank: [step()] * WARMUP + [taken(own, 10.0)] * (WINDOW - WARMUP) for rank, own in enumerate(computing)}
    return record_of(found._replace(steps=steps), {**WINDOW_OF_30, "layout": {"tp": 1, "pp": 2}})


def test_the_record_has_it_beside_the_predicted_one() -> None:
    made = measured((8.0, 7.0))
    training = made["quality"]["training"]
    assert training["updates"] == 40
    assert (training["predicted_bubble"], training["measured_bubble"]) == (0.2, pytest.approx(0.25))
    assert training["measured_bubble_of_stages"] == [pytest.approx(0.2), pytest.approx(0.3)]
    assert [rank["bubble"] for rank in made["ranks"]] == [pytest.approx(0.2), pytest.approx(0.3)]
