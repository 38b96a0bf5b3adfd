"""A record's evidence compared with the raw events in its bundle, which a forger would have to forge as well."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from flagbench.records.read import read_record
from flagbench.runs.reproduce.raw_events import compared
from flagbench_cases.record import assemble
from flagbench_cases.record.evidence import OK, read_spool
from flagbench_cases.shared.spool import RankSpool
from flagbench_core.evidence.columns import in_blocks, losses_in_blocks
from flagbench_core.evidence.section import digest_of, read_section
from forging import column, consistent, scale
from honest import CLAIMS, Pace, honest_events, honest_record
from unit.cases.record.runs import WINDOW_OF_30, evidence, request, step

WITH_ROOFS = Pace(roofs=(1.2e14, 1.3e12, 1.3e11))
Raw = dict[str, Any]
Files = dict[str, bytes]
Edit = Callable[[Raw], object]
DISTILBERT, AQUILA = "distilbert/a100-1x8-fp32", "aquila-33b/a100-1x8-tp8"


@cache
def _made(claim: str) -> str:
    return json.dumps(honest_record(CLAIMS[claim], WITH_ROOFS))


@cache
def _events(claim: str) -> Files:
    return honest_events(CLAIMS[claim], WITH_ROOFS)


def found(raw: Raw, files: Files, folder: Path) -> list[str]:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return compared({name: folder / name for name in files}, read_record(json.dumps(raw).encode()), 0)[1]


@pytest.mark.parametrize("claim", [DISTILBERT, AQUILA, "llama2-7b-lora/a100-1x1-fp16-bs4"])
def test_honest_evidence_is_that_of_its_raw_events(claim: str, tmp_path: Path) -> None:
    files = {**_events(claim)}
    files["rank-00000.facts"] += b"[]\n{\n\xff\n" + b"[" * 10**5 + b"\n"  # what is no fact is skipped
    assert found(json.loads(_made(claim)), files, tmp_path) == []


FORGED: dict[str, Edit] = {
    "data_wait of rank 0 in the warmup of train": lambda raw: scale(raw, 0.9),
    "samples of rank 3": lambda raw: column(raw, "samples", lambda samples: samples - 1, rank=3),
    "useful of rank 0 in the window": lambda raw: raw["evidence"]["spans"][1]["flops"].update(useful=5),
    "timing.e2e of rank 0 is 361500000": lambda raw: raw["evidence"]["timing"].update(e2e=361_500_000),
    "duration of train of rank 5": lambda raw: raw["evidence"]["durations"]["train"].__setitem__(5, 10**8),
    "memory peak of rank 2": lambda raw: raw["evidence"]["memory"]["peak"].__setitem__(2, 5),
    "matrix product of rank 4": lambda raw: raw["evidence"]["ceilings"].__setitem__(4, 1.0),
    "device of memory_bandwidth of rank 5": lambda raw: raw["evidence"]["roofs"][2]["columns"].update(device=5000),
    "samples of all_reduce of rank 0": lambda raw: raw["evidence"]["roofs"][3]["columns"].update(samples=2),
    "loss of rank 6": lambda raw: raw["evidence"]["spans"][1]["loss"][6].__setitem__(3, 0.5),
}


@pytest.mark.parametrize("clause", FORGED)
def test_what_was_forged_consistently_is_named(clause: str, tmp_path: Path) -> None:
    raw = json.loads(_made(DISTILBERT))
    FORGED[clause](raw)
    assert clause in "; ".join(found(consistent(raw), _events(DISTILBERT), tmp_path))


@pytest.mark.parametrize("content", [b"", b"\0" * 64, b"FBSPOOL1" + struct.pack("<QQ", 9, 10**18)])
def test_raw_events_that_are_cut_off_or_missing(content: bytes, tmp_path: Path) -> None:
    files = {**_events(DISTILBERT), "rank-00002.steps": content}
    assert "120 steps of rank 2, and its raw events" in found(json.loads(_made(DISTILBERT)), files, tmp_path)[0]
    del files["rank-00002.steps"], files["rank-00003.facts"]
    clauses = "; ".join(found(json.loads(_made(DISTILBERT)), files, tmp_path))
    assert "its raw events 0" in clauses
    assert "the duration of train of rank 3" in clauses


def test_nothing_is_said_without_events_or_evidence(tmp_path: Path) -> None:
    raw = json.loads(_made(DISTILBERT))
    assert found(raw, {"steps": b"1 2 3\n"}, tmp_path) == []
    raw["evidence"] = None
    assert found(raw, _events(DISTILBERT), tmp_path) == []


def test_numbers_that_nothing_can_be_computed_from(tmp_path: Path) -> None:
    raw, files = json.loads(_made(DISTILBERT)), {**_events(DISTILBERT)}
    files["rank-00002.facts"] += b'{"rank": 2, "kind": "timing", "train": 1' + b"0" * 400 + b"}\n"
    steps = bytearray(files["rank-00001.steps"])
    for number, loss in enumerate((float("inf"), float("-inf"))):
        struct.pack_into("<d", steps, 64 + number * 17 * 8 + 7 * 8, loss)
    files["rank-00001.steps"] = bytes(steps)
    section = read_section(raw["evidence"])
    spans = [
        span._replace(
            columns={name: [in_blocks(each, 2) for each in of] for name, of in span.columns.items()},
            loss=[each and losses_in_blocks(each, 2) for each in span.loss],
        )
        for span in section.spans
    ]
    raw["evidence"] = section._replace(block=2, spans=spans, roofs=()).to_json()
    clauses = found(raw, files, tmp_path)
    assert [clause.partition("raw events of ")[2][:6] for clause in clauses] == ["rank 1", "rank 2"]


@pytest.fixture
def stages(tmp_path: Path) -> tuple[Raw, Files]:
    """The record and the raw events of two stages of a pipeline on one node."""
    for rank, steps in evidence().steps.items():
        spool = RankSpool(str(tmp_path), rank)
        spool.reserve(len(steps))
        for number in range(len(steps)):
            one = 1e-3 * (1 + (7 * number + 3 * rank) % 11)
            times = {"first_collective": one, "collective_wait": 2 * one, "computing": 3 * one}
            spool.step(step()._replace(**times, pipeline=4 * one + rank))
        for fact in evidence().facts:
            if fact["rank"] == rank:
                spool.fact(fact["kind"], **{k: v for k, v in fact.items() if k not in ("kind", "rank", "time")})
    config = {**WINDOW_OF_30, "layout": {"tp": 1, "pp": 2}}
    raw = json.loads(assemble.to_line(assemble.assemble(request(config), read_spool(str(tmp_path), 2), OK)))
    raw["status"] = {"state": "ok", "phase": "done", "reason": None, "exit_code": 0}
    return raw, {file.name: file.read_bytes() for file in tmp_path.iterdir()}


def _add_one(*path: Any) -> Edit:
    def edit(raw: Raw) -> None:
        place: Any = raw["evidence"]["spans"][1]
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] += 1

    return edit


STAGES: dict[str, Edit] = {
    "": lambda raw: None,
    "first of rank 1 in the window of train": _add_one("collectives", "first", 1, 3),
    "wait of rank 0 in the window of train": _add_one("collectives", "wait", 0, 29),
    "pipeline of rank 1 in the window of train": _add_one("passes", "pipeline", 1),
}


@pytest.mark.parametrize("clause", STAGES)
def test_the_times_of_a_pipeline_are_compared(stages: tuple[Raw, Files], tmp_path: Path, clause: str) -> None:
    raw, files = stages
    STAGES[clause](raw)
    raw["evidence_digest"] = digest_of(raw["evidence"])
    clauses = found(raw, files, tmp_path)
    assert clause in "; ".join(clauses)
    assert bool(clauses) is bool(clause)


def test_packed_evidence_is_compared_too(stages: tuple[Raw, Files], tmp_path: Path) -> None:
    raw, files = stages
    section = read_section(raw["evidence"])
    spans = [
        span._replace(
            columns={name: [[sum(each)] for each in of] for name, of in span.columns.items()},
            collectives=None,
            loss=[],
        )
        for span in section.spans
    ]
    ceilings = [ceiling + 0.25 for ceiling in section.ceilings]
    packed = section._replace(block=max(span.steps for span in section.spans), spans=spans, ceilings=ceilings)
    raw["evidence"] = packed.to_json(packed=True)
    assert isinstance(raw["evidence"]["memory"]["peak"], dict)
    raw["evidence_digest"] = digest_of(raw["evidence"])
    assert found(raw, files, tmp_path) == []
