"""The record of a large job: read as one of few ranks, recomputed from its evidence, refused if it is doctored."""

from __future__ import annotations

import base64
import copy
import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from catalogs import CATALOG
from flagbench.evidence.section import digest_of
from flagbench.record.read import RecordError, read_record
from flagbench.verify import Verdict, plausible, verify_claim
from flagbench.verify.validity import examine
from flagbench_cases.record import measured
from flagbench_cases.shared.spool import Step
from honest import CLAIMS, EVEN, honest_record

CLAIM, CASE = CLAIMS["distilbert/a100-1x8-fp32"], CATALOG.cases["distilbert"]
NODES, WORLD = 64, 512


@pytest.fixture
def _numbers_are_proved() -> None:
    """Here they are not: see conftest.py."""


@pytest.fixture
def _parts_may_disagree() -> None:
    """Here they may not: see conftest.py."""


@pytest.fixture(autouse=True)
def _packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The evidence of so many ranks is packed, as that of more than 8,000 is."""
    for module in (measured, plausible):
        monkeypatch.setattr(module, "MAX_RANK_STEPS", WORLD)


@cache
def _large(nodes: int = NODES) -> str:
    drawn = random.Random(1)

    def uneven(rank: int, step: Step) -> Step:
        factor = 1 + drawn.gauss(0, 0.01)
        times = {name: getattr(step, name) * factor for name in ("host", "device", "data_wait", "collective_wait")}
        return step._replace(**times)

    conditions = {**CLAIM.conditions, "nodes": nodes, "devices": 8 * nodes}
    job = replace(CLAIM, run=replace(CLAIM.run, nodes=nodes), conditions=conditions)
    return json.dumps(honest_record(job, EVEN, count=24, change=uneven), separators=(",", ":"))


def large() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_large())
    return found


def problems(raw: dict[str, Any]) -> str:
    return "; ".join(examine(read_record(json.dumps(raw, separators=(",", ":")).encode()), CASE).problems)


@pytest.mark.parametrize("nodes", [NODES, pytest.param(1024, marks=pytest.mark.slow)])
def test_an_honest_one_is_valid_and_has_every_rank(nodes: int) -> None:
    text = _large(nodes)
    record, world = read_record(text.encode()), 8 * nodes
    assert len(text) < 1_000_000
    assert '"device":{"least":' in text
    assert [rank.rank for rank in record.ranks] == [*range(world)]
    last = record.ranks[-1]
    assert (last.node, last.local_rank, last.host, last.pid, last.steps) == (nodes - 1, 7, "machine", 9 + world, 24)
    assert examine(record, CASE).problems == ()
    result = verify_claim([record], CLAIM, CASE)
    assert result.verdict is Verdict.NOT_COMPARABLE  # the row is of eight devices


def _faster(raw: dict[str, Any]) -> None:
    for metric in raw["metrics"]:
        if metric["name"] == "p_core":
            metric["value"] *= 1.01


def _other_bytes(raw: dict[str, Any]) -> None:
    """The slowest rank is made as fast as the fastest, and the digest is made again."""
    column = raw["evidence"]["spans"][1]["columns"]["device"]
    data = base64.b64decode(column["data"])
    values = [data[at : at + column["bytes"]] for at in range(0, len(data), column["bytes"])]
    values[values.index(max(values))] = min(values)
    column["data"] = base64.b64encode(b"".join(values)).decode()
    raw["evidence_digest"] = digest_of(raw["evidence"])


def _fewer(raw: dict[str, Any]) -> None:
    columns = raw["rank_columns"]
    raw["rank_columns"] = {"ranks": WORLD - 8, "hosts": columns["hosts"][:-1], "steps": columns["steps"]}


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (_faster, "metric p_core is"),
        (_other_bytes, "its evidence gives"),
        (_fewer, "its ranks are 0, 1,"),
        (lambda raw: raw["rank_columns"].update(steps=11), "rank 0: steps is 11, and its evidence gives 24"),
        (lambda raw: raw["ranks"].append({"rank": 3, "node": 1, "steps": 24}), "rank 3 is on node 1"),
        (lambda raw: raw["ranks"].extend([{"rank": 3, "node": 0, "steps": 24}] * 2), "its ranks are"),
        (lambda raw: raw["ranks"].append({"rank": WORLD, "node": 0, "steps": 24}), "its ranks are"),
        (
            lambda raw: raw["ranks"].append({"rank": 3, "node": 0, "steps": 24, "step_median": 9.0}),
            "rank 3: step_median is 9",
        ),
    ],
)
def test_a_doctored_one_is_invalid(edit: Callable[[dict[str, Any]], None], words: str) -> None:
    raw = copy.deepcopy(large())
    edit(raw)
    assert words in problems(raw)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hosts": ["a", "b", "c"]}, "it has 3 hosts of 512 ranks"),
        ({"hosts": []}, "it has 0 hosts of 512 ranks"),
        ({"pids": {"least": 1, "bytes": 1, "data": "AAAA"}}, "pids, in bytes, has 3 entries"),
        ({"pids": {"least": 1, "bytes": 10**6, "data": ""}}, "bytes"),
        ({"ranks": 10**9}, "ranks"),
    ],
)
def test_columns_that_are_not_of_its_ranks_are_no_record(change: dict[str, Any], words: str) -> None:
    raw = large()
    raw["rank_columns"].update(change)
    with pytest.raises(RecordError, match=words):
        read_record(json.dumps(raw, separators=(",", ":")).encode())
