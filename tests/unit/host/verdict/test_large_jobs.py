"""The record of a large job: read as one of few ranks, recomputed from its evidence, refused if it is doctored."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from flagbench.records.read import RecordError
from flagbench.verdict import Verdict, verify_claim
from flagbench.verdict.recompute import recompute
from flagbench.verdict.rules import check_record
from flagbench_cases.record import measured
from flagbench_cases.shared.spool import Step
from flagbench_core.evidence.document import digest_of
from honest import honest_record

from .conftest import CASE, CLAIM, Raw, read

TESTED = "records"
NODES, WORLD = 64, 512
BYTES = 100
"""Of a record, for each rank: one of 8,192 ranks is then smaller than a megabyte."""


@pytest.fixture(autouse=True)
def _packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The evidence of so many ranks is packed, as that of more than 8,000 is."""
    monkeypatch.setattr(measured, "MAX_RANK_STEPS", WORLD)


@cache
def _large() -> str:
    drawn = random.Random(1)

    def uneven(rank: int, step: Step) -> Step:
        factor = 1 + drawn.gauss(0, 0.01)
        times = {name: getattr(step, name) * factor for name in ("host", "device", "data_wait", "collective_wait")}
        return step._replace(**times)

    conditions = {**CLAIM.conditions, "nodes": NODES, "devices": WORLD}
    job = replace(CLAIM, run=replace(CLAIM.run, nodes=NODES), conditions=conditions)
    return json.dumps(honest_record(job, count=24, change=uneven), separators=(",", ":"))


def large() -> Raw:
    found: Raw = json.loads(_large())
    return found


def test_a_sound_one_is_valid_and_has_every_rank() -> None:
    record = read(large())
    assert len(_large()) < BYTES * WORLD
    assert '"device":{"least":' in _large()
    assert [rank.rank for rank in record.ranks] == [*range(WORLD)]
    last = record.ranks[-1]
    assert (last.node, last.local_rank, last.host, last.pid, last.steps) == (NODES - 1, 7, "machine", 9 + WORLD, 24)
    assert check_record(recompute(record, CASE)) == ()
    assert verify_claim([record], CLAIM, CASE).verdict is Verdict.NOT_COMPARABLE  # the row is of eight devices


def other_bytes(raw: Raw) -> None:
    """The slowest rank is made as fast as the fastest, and the digest is made again."""
    column = raw["evidence"]["spans"][1]["columns"]["device"]
    data = base64.b64decode(column["data"])
    values = [data[at : at + column["bytes"]] for at in range(0, len(data), column["bytes"])]
    values[values.index(max(values))] = min(values)
    column["data"] = base64.b64encode(b"".join(values)).decode()
    raw["evidence_digest"] = digest_of(raw["evidence"])


def fewer(raw: Raw) -> None:
    columns = raw["rank_columns"]
    raw["rank_columns"] = {"ranks": WORLD - 8, "hosts": columns["hosts"][:-1], "steps": columns["steps"]}


def rank(number: int, **fields: Any) -> Callable[[Raw], None]:
    """A rank on its own, besides those in columns."""
    return lambda raw: raw["ranks"].append({"rank": number, "node": 0, "steps": 24, **fields})


@pytest.mark.parametrize(
    ("edit", "rule"),
    [
        (other_bytes, "numbers"),
        (fewer, "ranks"),
        (lambda raw: raw["rank_columns"].update(steps=11), "numbers"),
        (rank(WORLD), "ranks"),
        (rank(3, step_median=9.0), "numbers"),
        (lambda raw: [rank(3)(raw), rank(3)(raw)], "ranks"),
    ],
)
def test_a_doctored_one_is_invalid(edit: Callable[[Raw], object], rule: str) -> None:
    raw = large()
    edit(raw)
    assert rule in {finding.rule for finding in check_record(recompute(read(raw), CASE))}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hosts": ["a", "b", "c"]}, "3 hosts of 512 ranks"),
        ({"pids": {"least": 1, "bytes": 1, "data": "AAAA"}}, "3 entries"),
        ({"pids": {"least": 1, "bytes": 10**6, "data": ""}}, "bytes"),
        ({"ranks": 10**9}, "ranks"),
    ],
)
def test_columns_that_are_not_of_its_ranks_are_no_record(change: dict[str, Any], words: str) -> None:
    raw = large()
    raw["rank_columns"].update(change)
    with pytest.raises(RecordError, match=words):
        read(raw)
