"""A record's evidence against the raw events of its ranks, as a node's bundle has them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flagbench.evidence.section import digest_of, read_section
from flagbench.record.read import read_record
from flagbench.reproduce.raw_events import compared
from flagbench_cases.record import assemble
from flagbench_cases.record.evidence import OK, read_spool
from flagbench_cases.shared.spool import RankSpool
from unit.cases.record.runs import WARMUP, WINDOW_OF_30, evidence, request, step

CONFIG = {**WINDOW_OF_30, "layout": {"tp": 1, "pp": 2}}


def _times(rank: int, number: int) -> dict[str, float]:
    one = 1e-3 * (1 + (7 * number + 3 * rank) % 11)
    return {"first_collective": one, "collective_wait": 2 * one, "computing": 3 * one, "pipeline": 4 * one + rank}


@pytest.fixture
def run(tmp_path: Path) -> tuple[dict[str, Path], dict[str, Any]]:
    """The raw events and the record of two stages of a pipeline on one node."""
    folder = tmp_path / "spool"
    folder.mkdir()
    found = evidence()
    for rank, steps in found.steps.items():
        spool = RankSpool(str(folder), rank)
        spool.reserve(len(steps))
        for number in range(len(steps)):
            spool.step(step()._replace(**_times(rank, number)))
        for fact in found.facts:
            if fact["rank"] == rank:
                spool.fact(fact["kind"], **{k: v for k, v in fact.items() if k not in ("kind", "rank", "time")})
    made = assemble.assemble(request(CONFIG), read_spool(str(folder), 2), OK)
    return {file.name: file for file in folder.iterdir()}, json.loads(assemble.to_line(made))


def found(files: dict[str, Path], raw: dict[str, Any]) -> list[str]:
    raw["evidence_digest"] = digest_of(raw["evidence"])
    raw["status"] = {"state": "ok", "phase": "done", "reason": None, "exit_code": 0}
    return compared(files, read_record(json.dumps(raw).encode()), 0)[1]


def test_the_evidence_of_a_run_is_that_of_its_raw_events(run: tuple[dict[str, Path], dict[str, Any]]) -> None:
    spans = run[1]["evidence"]["spans"]
    assert [sorted({"collectives", "passes"} & span.keys()) for span in spans] == [["collectives", "passes"]] * 2
    assert found(*run) == []


def _add(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Add one to a number of the window's span."""

    def edit(raw: dict[str, Any]) -> None:
        place: Any = raw["evidence"]["spans"][1]
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] += 1

    return edit


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (_add("collectives", "first", 1, 3), "first of rank 1 in the window of train"),
        (_add("collectives", "wait", 0, 29), "wait of rank 0 in the window of train"),
        (_add("passes", "pipeline", 1), "pipeline of rank 1 in the window of train"),
        (_add("columns", "host"), "host of rank 0 in the window of train"),
        (lambda raw: raw["evidence"]["memory"]["peak"].__setitem__(1, 5), "memory peak of rank 1 is 5"),
    ],
)
def test_other_evidence_is_named(
    run: tuple[dict[str, Path], dict[str, Any]], edit: Callable[[dict[str, Any]], None], words: str
) -> None:
    files, raw = run
    edit(raw)
    assert words in "; ".join(found(files, raw))


def test_packed_evidence_is_held_against_them_too(run: tuple[dict[str, Path], dict[str, Any]]) -> None:
    files, raw = run
    section = read_section(raw["evidence"])
    longest = max(span.steps for span in section.spans)
    assert longest == 30
    assert len(section.spans[0].columns["host"][0]) == WARMUP
    spans = [
        span._replace(
            columns={name: [[sum(each)] for each in of] for name, of in span.columns.items()},
            collectives=None,
            loss=[],
        )
        for span in section.spans
    ]
    ceilings = [ceiling + 0.25 for ceiling in section.ceilings]
    packed = section._replace(block=longest, spans=spans, ceilings=ceilings)
    raw["evidence"] = packed.to_json(packed=True)
    assert isinstance(raw["evidence"]["memory"]["peak"], dict)
    assert found(files, raw) == []
