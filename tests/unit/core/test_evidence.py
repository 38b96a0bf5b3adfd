"""The evidence in a record: integers of every step or exact sums of blocks, and a record under a megabyte."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from flagbench_cases.record import assemble
from flagbench_cases.record.evidence import Evidence
from flagbench_cases.record.measured import Border, build_span
from flagbench_cases.shared.spool import Step
from flagbench_core.evidence.columns import COLUMNS, TIMES, EvidenceError, block_sizes, decode, encode
from flagbench_core.evidence.document import read_evidence
from unit.cases.record.runs import (
    WARMUP,
    evidence,
    evidence_of,
    fact_of,
    metrics_of,
    record_of,
    request,
    resolved,
    step,
)


def drawn_steps(count: int, seed: int) -> list[Step]:
    """Steps whose times and losses differ in all digits."""
    drawn = random.Random(seed)
    return [
        step(drawn.uniform(10, 12))._replace(
            tokens_useful=float(drawn.randrange(1_000_000)),
            **{name: drawn.uniform(1, 9.9) for name in (*TIMES, "first_collective", "collective_wait")},
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("values", "block", "short"),
    [
        ([5, 5, 5, 5, 5], 2, 5),
        ([1, 2, 3, 4, 5], 2, [3, 7, 5]),
        ([7], 4, 7),
        ([0, 0, 0], 1, 0),
        ([4] * 20 + [3] + [4] * 20, 1, {"runs": [[20, 4], [1, 3], [20, 4]]}),
    ],
)
def test_a_column_has_a_short_form_and_comes_back_exactly(values: list[int], block: int, short: Any) -> None:
    sizes = block_sizes(len(values), block)
    sums = [sum(values[start : start + block]) for start in range(0, len(values), block)]
    assert encode(sums, sizes) == short
    assert decode(short, sizes, "host") == sums


def test_times_are_rounded_to_microseconds() -> None:
    rows = [step()._replace(host=0.0000014, after=float("nan"), to_device=-1e-9), step()._replace(host=0.0000026)]
    span = build_span(Border("train", "window", 0, 2), {0: rows}, 1)
    found = [span.columns[name] for name in ("host", "after", "to_device")]
    assert found == [[[1, 3]], [[0, 0]], [[0, 10_000]]]


def test_a_section_is_read_as_it_was_written() -> None:
    evidence = evidence_of({0: drawn_steps(25, 1), 1: drawn_steps(25, 2)}, 5, [400.0, 401.0], block=4)
    assert read_evidence(evidence.to_json()) == evidence


def test_blocks_have_the_sums_of_their_steps() -> None:
    ranks = {0: drawn_steps(25, 1), 1: drawn_steps(25, 2)}
    single, blocks = (evidence_of(ranks, 5, [400.0, 401.0], block) for block in (1, 4))
    assert [len(span.columns["host"][0]) for span in blocks.spans] == [2, 5]
    for name in COLUMNS:
        assert blocks.step_range().total(name) == single.step_range().total(name)
    one, other = (metrics_of(evidence, replicas=2) for evidence in (single, blocks))
    rates = [name for name in one if name.startswith("p_")]
    assert [one[name]["value"] for name in rates] == [other[name]["value"] for name in rates]
    assert other["p_core"]["n"] == 20


def test_times_of_collectives_are_in_blocks_of_their_own() -> None:
    ranks = {rank: drawn_steps(25, rank) for rank in range(2)}
    span = build_span(Border("train", "window", 5, 25), ranks, 1, collective_block=8)
    assert span.collectives is not None
    assert [span.collectives.block, *map(len, span.collectives.first)] == [8, 3, 3]
    assert sum(span.collectives.wait[1]) == sum(round(step.collective_wait * 1e6) for step in ranks[1][5:])
    ranks[1][7] = ranks[1][7]._replace(collective_wait=float("nan"))
    assert build_span(Border("train", "window", 5, 25), ranks, 1).collectives is None
    assert build_span(Border("train", "window", 8, 25), ranks, 1).collectives is not None


def test_medians_of_a_rank_follow_from_its_steps() -> None:
    found = evidence()
    times = [(0.001 * (1 + number % 5), 0.01 * (1 + number % 3)) for number in range(len(found.steps[1]))]
    steps = [s._replace(first_collective=a, collective_wait=b) for s, (a, b) in zip(found.steps[1], times)]
    made = record_of(found._replace(steps={0: steps[::-1], 1: steps}))
    for rank in made["ranks"]:
        assert (rank["first_collective_median"], rank["collective_wait_median"]) == (0.003, 0.02)
    assert record_of(found)["ranks"][0]["collective_wait_median"] is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda e: e["spans"].pop(0),
        lambda e: e["spans"].append(dict(e["spans"][1], first_step=25)),
        lambda e: e["spans"][1]["columns"]["host"][1].pop(),
        lambda e: e["spans"][1]["columns"].pop("after"),
        lambda e: (e.update(block=10**12), e["spans"][1].update(steps=10**12)),
        lambda e: e.update(ranks=3),
        lambda e: e.update(version=2),
        lambda e: e["durations"]["train"].pop(),
        lambda e: e["spans"][0].update(loss=[[1.0] * 5]),
        lambda e: e["spans"][1]["collectives"]["first"][1].pop(),
        lambda e: e["spans"][1].update(passes={"computing": [1, 2]}),
    ],
)
def test_evidence_that_contradicts_itself(damage: Callable[[dict[str, Any]], object]) -> None:
    found = evidence_of({0: drawn_steps(25, 1), 1: drawn_steps(25, 2)}, 5, [400.0, 401.0]).to_json()
    read_evidence(found)
    damage(found)
    with pytest.raises(EvidenceError):
        read_evidence(found)


def long_run(world: int, count: int) -> tuple[Evidence, dict[str, Any]]:
    """A run of so many steps, of which 1,000 are repeated, on so many ranks."""
    found = evidence([])
    ranks = {rank: drawn_steps(min(count, 1000), rank) * max(1, count // 1000) for rank in range(world)}
    for kind in ("rank", "memory", "ceiling", "timing"):
        other = fact_of(found, kind)
        found.facts[:] = [fact for fact in found.facts if fact["kind"] != kind]
        found.facts.extend(dict(other, rank=rank) for rank in range(world))
    configuration = resolved(gpus=world, steps=count - WARMUP)
    return found._replace(steps=ranks), configuration


@pytest.mark.parametrize(
    ("world", "count", "block"),
    [(16, 1_000, 1), (2, 24_000, 5)],
)
def test_a_record_of_16000_rank_steps_is_under_a_megabyte(world: int, count: int, block: int) -> None:
    found, configuration = long_run(world, count)
    made = assemble.assemble(
        request(configuration, gpus=world), found, assemble.Outcome("interrupted", "train", "stopped", None, 7)
    )
    assert made["evidence"]["block"] == block
    line = assemble.to_line(made)
    assert 5e5 < len(line) <= assemble.MAX_LINE_BYTES < 1e6
    assert sum(map(line.count, ",[{")) < 300_000  # what a reader takes


def test_where_losses_are() -> None:
    assert [len(of) for of in record_of(evidence())["evidence"]["spans"][0]["loss"]] == [10, 10]
    one = evidence()._replace(steps={0: evidence().steps[0]})
    one.facts[:] = [fact for fact in one.facts if fact["rank"] == 0]
    made = record_of(one, resolved(gpus=1, steps=30), gpus=1)
    assert "loss" not in made["evidence"]["spans"][0]
    assert made["quality"]["losses"]["steps"] == 40
