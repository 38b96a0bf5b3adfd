"""A record's evidence compared with the raw events in its bundle, which a forger would have to forge as well."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from flagbench.evidence.columns import in_blocks, losses_in_blocks
from flagbench.evidence.section import read_section
from flagbench.record.read import read_record
from flagbench.reproduce.raw_events import compared
from forging import column, consistent, scale
from honest import CLAIMS, honest_events, honest_record

Raw = dict[str, Any]
Files = dict[str, bytes]
DISTILBERT, AQUILA = "distilbert/a100-1x8-fp32", "aquila-33b/a100-1x8-tp8"


@cache
def _made(claim: str) -> str:
    return json.dumps(honest_record(CLAIMS[claim]))


@cache
def _events(claim: str) -> Files:
    return honest_events(CLAIMS[claim])


def found(raw: Raw, files: Files, folder: Path) -> list[str]:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return compared({name: folder / name for name in files}, read_record(json.dumps(raw).encode()), 0)[1]


@pytest.mark.parametrize("claim", [DISTILBERT, AQUILA, "llama2-7b-lora/a100-1x1-fp16-bs4"])
def test_honest_evidence_is_that_of_its_raw_events(claim: str, tmp_path: Path) -> None:
    assert found(json.loads(_made(claim)), _events(claim), tmp_path) == []


def _flops(raw: Raw) -> None:
    raw["evidence"]["spans"][1]["flops"]["useful"] = 5


def _peak(raw: Raw) -> None:
    raw["evidence"]["memory"]["peak"][2] += 1


def _ceiling(raw: Raw) -> None:
    raw["evidence"]["ceilings"][4] /= 2


def _loss(raw: Raw) -> None:
    raw["evidence"]["spans"][1]["loss"][6][3] += 0.5


FORGED: list[tuple[Callable[[Raw], object], str]] = [
    (lambda raw: scale(raw, 0.9), "data_wait of rank 0 in the warmup of train is not that of its raw events"),
    (lambda raw: column(raw, "device", lambda micro: micro + 1, rank=7), "device of rank 7"),
    (lambda raw: column(raw, "samples", lambda samples: samples - 1, rank=3), "samples of rank 3"),
    (_flops, "useful of rank 0 in the window of train"),
    (lambda raw: raw["evidence"]["timing"].update(e2e=361_500_000), "timing.e2e of rank 0 is 361500000"),
    (lambda raw: raw["evidence"]["durations"]["train"].__setitem__(5, 10**8), "the duration of train of rank 5"),
    (_peak, "memory peak of rank 2"),
    (_ceiling, "the matrix product of rank 4"),
    (_loss, "loss of rank 6"),
]


@pytest.mark.parametrize(("edit", "words"), FORGED, ids=[words for _, words in FORGED])
def test_evidence_that_was_forged_consistently_is_not_that_of_the_raw_events(
    edit: Callable[[Raw], object], words: str, tmp_path: Path
) -> None:
    raw = json.loads(_made(DISTILBERT))
    edit(raw)
    clauses = found(consistent(raw), _events(DISTILBERT), tmp_path)
    assert words in "; ".join(clauses)


@pytest.mark.parametrize("content", [b"", b"FBSPOOL1", b"\0" * 64, b"FBSPOOL1" + struct.pack("<QQ", 9, 10**18)])
def test_raw_events_that_are_cut_off_or_missing_are_not_those_of_the_record(content: bytes, tmp_path: Path) -> None:
    files = {**_events(DISTILBERT), "rank-00002.steps": content}
    assert "120 steps of rank 2, and its raw events" in found(json.loads(_made(DISTILBERT)), files, tmp_path)[0]
    del files["rank-00002.steps"], files["rank-00003.facts"]
    clauses = "; ".join(found(json.loads(_made(DISTILBERT)), files, tmp_path))
    assert "its raw events 0" in clauses
    assert "the duration of train of rank 3" in clauses


def test_facts_that_are_not_json_objects_are_skipped(tmp_path: Path) -> None:
    files = {**_events(DISTILBERT)}
    files["rank-00000.facts"] += b"[]\n{\n\xff\n" + b"[" * 10**5 + b"\n"
    assert found(json.loads(_made(DISTILBERT)), files, tmp_path) == []


def test_nothing_is_said_without_events_or_evidence(tmp_path: Path) -> None:
    raw = json.loads(_made(DISTILBERT))
    assert found(raw, {"steps": b"1 2 3\n"}, tmp_path) == []
    raw["evidence"] = None
    assert found(raw, _events(DISTILBERT), tmp_path) == []


HUGE = b'{"rank": 2, "kind": "timing", "train": 1' + b"0" * 400 + b"}\n"


@pytest.mark.parametrize("facts", [HUGE, b'{"rank": 2, "kind": "ceiling", "flops": Infinity}\n'])
def test_facts_with_numbers_that_are_too_large_are_not_those_of_the_record(facts: bytes, tmp_path: Path) -> None:
    raw, files = json.loads(_made(DISTILBERT)), {**_events(DISTILBERT)}
    files["rank-00002.facts"] += facts
    raw["evidence"]["ceilings"] = [round(ceiling) for ceiling in raw["evidence"]["ceilings"]]
    assert "rank 2" in "; ".join(found(raw, files, tmp_path))


@pytest.mark.parametrize("losses", [(float("inf"), float("-inf")), (1.7e308, 1.7e308)])
def test_losses_without_a_sum_are_not_those_of_the_record(losses: tuple[float, ...], tmp_path: Path) -> None:
    raw, files = honest_record(CLAIMS[DISTILBERT], count=120), {**_events(DISTILBERT)}
    raw["evidence"] = blocks_of_two(raw["evidence"])
    steps = bytearray(files["rank-00001.steps"])
    for number, loss in enumerate(losses):
        struct.pack_into("<d", steps, 64 + number * 17 * 8 + 7 * 8, loss)
    files["rank-00001.steps"] = bytes(steps)
    assert "the raw events of rank 1 have numbers" in "; ".join(found(raw, files, tmp_path))


def blocks_of_two(evidence: Raw) -> Raw:
    """The same evidence in blocks of two steps."""
    section = read_section(evidence)
    spans = [
        span._replace(
            columns={name: [in_blocks(each, 2) for each in of] for name, of in span.columns.items()},
            loss=[each and losses_in_blocks(each, 2) for each in span.loss],
            collectives=None,
        )
        for span in section.spans
    ]
    return section._replace(block=2, spans=spans).to_json()
