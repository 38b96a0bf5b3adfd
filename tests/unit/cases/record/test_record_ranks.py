"""A record of a large job says once what its ranks have in common, and stays under a megabyte."""

from __future__ import annotations

import random
from typing import Any

import pytest

from flagbench_cases.record import assemble
from flagbench_cases.record.evidence import Evidence
from flagbench_cases.record.ranks import MOST_LISTED, bounded
from flagbench_core.evidence.columns import EvidenceError, unpack
from flagbench_core.evidence.document import read_evidence
from unit.cases.record.runs import evidence, evidence_of, fact_of, record_of, resolved, step

pytestmark = pytest.mark.image

PER_NODE = 8


def large_job(world: int, count: int = 12) -> Evidence:
    """Every time, amount of memory and processor time differs from rank to rank, in as many digits as a day has."""
    drawn = random.Random(1)
    found, kinds = evidence([]), ("rank", "memory", "ceiling", "timing")
    plain = {kind: fact_of(found, kind) for kind in kinds}
    found.facts[:] = [fact for fact in found.facts if fact["kind"] not in (*kinds, "precision")]
    for rank in range(world):
        node, local = divmod(rank, PER_NODE)
        where = {"rank": rank, "node": node, "local_rank": local, "pid": 4_000_000 + rank, "host": f"node-{node:05d}"}
        peaks = {"peak": drawn.randrange(2**36, 2**37), "allocator_peak": drawn.randrange(2**36)}
        seconds = drawn.uniform(80_000, 86_400)
        found.facts.extend(
            [
                {**plain["rank"], **where, "device": {**plain["rank"]["device"], "uuid": f"GPU-{rank:036d}"}},
                {**plain["memory"], "rank": rank, **peaks},
                {**plain["ceiling"], "rank": rank, "flops": drawn.uniform(5e14, 1e15)},
                {**plain["timing"], "rank": rank, "train": seconds},
                {"kind": "processor", "rank": rank, "time": 1.0, "ran": seconds / 2, "waited": seconds / 3},
            ]
        )
    steps = {}
    for rank in range(world):
        times = {name: drawn.uniform(5_000, 7_000) for name in ("host", "device", "first_collective")}
        less = {name: drawn.uniform(0, 1_000) for name in ("data_wait", "to_device", "after", "collective_wait")}
        steps[rank] = [step(drawn.uniform(1, 2))._replace(**times, **less)] * count
    return found._replace(steps=steps, exits=dict.fromkeys(range(world), 0))


def record_of_job(found: Evidence, world: int) -> dict[str, Any]:
    nodes = world // PER_NODE
    configuration = {**resolved(gpus=PER_NODE, steps=2), "nodes": nodes}
    return record_of(found, configuration, nodes=nodes, gpus=PER_NODE)


def test_8192_ranks_fit_into_a_record() -> None:
    job = large_job(8192)
    made = record_of_job(job, 8192)
    line = assemble.to_line(made)
    assert len(line) <= assemble.MAX_LINE_BYTES
    assert sum(map(line.count, ",[{")) < 300_000
    record_evidence = read_evidence(made["evidence"])
    assert record_evidence.step_range("train", "window").column("device", 8191) == [
        round(2 * job.steps[8191][0].device * 1e6)
    ]
    facts = {fact["rank"]: fact for fact in job.facts if fact["kind"] == "memory"}
    assert record_evidence.memory["peak"] == [facts[rank]["peak"] for rank in range(8192)]
    assert record_evidence.spans[0].collectives is None  # no metric follows from it
    assert [metric["name"] for metric in made["metrics"]].count("p_core") == 1
    columns = made["rank_columns"]
    assert made["ranks"] == []
    assert (columns["ranks"], columns["steps"], len(columns["hosts"])) == (8192, 12, 1024)
    assert columns["hosts"][1023] == "node-01023"
    assert unpack(columns["pids"], 8192, "pids")[8191] == 4_008_191


def test_ranks_that_differ_are_listed_by_themselves() -> None:
    found = large_job(512, count=3)
    found.exits.update({7: -9, 9: 1})
    found.steps[40] = found.steps[40][:2]
    made = record_of_job(found, 512)
    assert [entry["rank"] for entry in made["ranks"]] == [7, 9, 40]
    assert made["ranks"][2]["steps"] == 2
    assert made["rank_columns"]["ranks"] == 512


@pytest.mark.parametrize("world", [8, MOST_LISTED])
def test_a_usual_job_has_an_entry_for_each_rank(world: int) -> None:
    made = record_of_job(large_job(world, count=3), world)
    assert [entry["rank"] for entry in made["ranks"]] == [*range(world)]
    assert made["ranks"][5]["uuid"]
    assert "rank_columns" not in made


def test_a_job_that_lacks_ranks() -> None:
    found = large_job(1024, count=1)
    found.facts[:] = [fact for fact in found.facts if fact["rank"] != 5]
    found.exits[6] = 1
    ranks = record_of_job(found._replace(steps={}), 1024)
    assert (ranks["rank_columns"], [entry["rank"] for entry in ranks["ranks"]]) == (None, [6])


def test_a_host_of_its_own_makes_a_rank_differ() -> None:
    plain = {"steps": 1, "exit": None, "pid": 1, "processor_seconds": None, "processor_wait_seconds": None}
    ranks = [{"rank": rank, "node": rank // 8, "host": "a" if rank != 3 else "b", **plain} for rank in range(512)]
    found = bounded(ranks, 512, 8)
    assert [entry["rank"] for entry in found["ranks"]] == [3]
    assert "processor_milliseconds" not in found["rank_columns"]


def test_evidence_that_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble, "MAX_LINE_BYTES", 30_000)
    made = record_of_job(large_job(512, count=3), 512)
    assert (made["evidence"], made["evidence_digest"]) == (None, None)
    assert "bundles" in made["evidence_reason"]
    assert made["metrics"]


def test_a_packed_column_has_one_block() -> None:
    job = large_job(8)
    record_evidence = evidence_of(job.steps, 5, block=12)
    raw = record_evidence.to_json(packed=True)
    read = read_evidence(raw)
    assert [span.columns for span in read.spans] == [span.columns for span in record_evidence.spans]
    assert not any(span.loss for span in read.spans)
    with pytest.raises(EvidenceError):
        read_evidence({**raw, "block": 3})
