"""The record's list of ranks: an entry for each, or in a large job what all of them have, said once."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from flagbench_cases.record.evidence import Evidence
from flagbench_cases.shared.processes import describe_exit
from flagbench_cases.shared.spool import Step
from flagbench_core.evidence.columns import pack
from flagbench_core.stats import summary

MOST_LISTED = 256
"""Ranks that a record lists one by one, at about 400 bytes each."""


def entries(evidence: Evidence) -> list[dict[str, Any]]:
    """The record's entry of each rank: its own time, and how long it waited. Those of collectives are added later."""
    processors = {fact["rank"]: fact for fact in evidence.all("processor")}
    return [_entry(fact, evidence, processors.get(fact["rank"], {})) for fact in evidence.all("rank")]


def _entry(fact: dict[str, Any], evidence: Evidence, processor: dict[str, Any]) -> dict[str, Any]:
    rank = fact["rank"]
    steps = evidence.steps.get(rank, [])
    entry: dict[str, Any] = {name: fact[name] for name in ("rank", "node", "local_rank", "pid", "host")}
    if "uuid" in fact["device"]:
        entry["uuid"] = fact["device"]["uuid"]
    entry.update(
        steps=len(steps),
        step_median=_median_step(steps),
        first_collective_median=None,
        collective_wait_median=None,
        data_wait_total=sum(step.data_wait for step in steps),
        processors=fact.get("processors"),
        processor_seconds=processor.get("ran"),
        processor_wait_seconds=processor.get("waited"),
        exit=describe_exit(evidence.exits.get(rank)),
    )
    return entry


def _median_step(steps: list[Step]) -> float | None:
    """The median device time of the steps that have one, seconds."""
    times = [step.device for step in steps if math.isfinite(step.device)]
    if not times:
        return None
    return summary.median(times)


def bounded(ranks: list[dict[str, Any]], world: int, per_node: int) -> dict[str, Any]:
    """The record's `ranks` and, of more than MOST_LISTED ranks, `rank_columns`.

    Then only ranks that differ from most others are listed. What follows from evidence is left out, and so are the
    UUIDs of devices; bundles have all of it.
    """
    if len(ranks) <= MOST_LISTED:
        return {"ranks": ranks}
    usual = Counter(map(_ending, ranks)).most_common(1)[0][0]
    hosts = {entry["node"]: entry["host"] for entry in reversed(ranks)}
    # A failed run may lack ranks, about which the columns would say something too.
    complete = [entry["rank"] for entry in ranks] == list(range(world)) and len(hosts) * per_node == world
    columns = None
    if complete:
        columns = {
            "ranks": world,
            "hosts": [hosts[node] for node in sorted(hosts)],
            "steps": usual[0],
            "exit": usual[1],
            "pids": pack([entry["pid"] for entry in ranks]),
            **_milliseconds(ranks, "processor"),
            **_milliseconds(ranks, "processor_wait"),
        }
    unusual = [entry for entry in ranks if _ending(entry) != usual or entry["host"] != hosts[entry["node"]]]
    return {"ranks": unusual[:MOST_LISTED], "rank_columns": columns}


def _ending(entry: dict[str, Any]) -> tuple[int, str | None]:
    return entry["steps"], entry["exit"]


def _milliseconds(ranks: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """A column of times; nothing unless every rank has one."""
    seconds = [entry[name + "_seconds"] for entry in ranks]
    if None in seconds:
        return {}
    return {name + "_milliseconds": pack([round(1000 * time) for time in seconds])}
