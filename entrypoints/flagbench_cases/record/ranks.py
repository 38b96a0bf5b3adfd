"""Builds the record's list of ranks: an entry for each rank, or in a large job columns and the unusual ranks."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

from flagbench_cases.record.evidence import Evidence
from flagbench_cases.shared.processes import describe_exit
from flagbench_cases.shared.spool import Step
from flagbench_core.evidence.columns import pack
from flagbench_core.stats import summary

MOST_LISTED = 256
"""Most ranks that a record lists one by one, at about 400 bytes each."""


def entries(evidence: Evidence) -> list[dict[str, Any]]:
    """Return the record's entry of each rank: where it ran, its times, and how it ended.

    The medians of collectives are filled in by sections.py, since they follow from the evidence.
    """
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
    """Return the median device time of the steps that have one, seconds; None if no step has."""
    times = [step.device for step in steps if math.isfinite(step.device)]
    if not times:
        return None
    return summary.median(times)


def bounded(ranks: list[dict[str, Any]], world: int, per_node: int) -> dict[str, Any]:
    """Return the record's `ranks` and, if there are more than MOST_LISTED, its `rank_columns`.

    `ranks` then lists only those that differ from most others. Values that can be computed from the evidence, and the
    UUIDs of devices, are left out; the nodes' bundles contain them. `per_node`: the number of ranks on each node.
    """
    if len(ranks) <= MOST_LISTED:
        return {"ranks": ranks}
    usual_end = Counter(map(_end_of, ranks)).most_common(1)[0][0]
    # Reversed, so that the first rank of each node is the one that counts.
    hosts = {entry["node"]: entry["host"] for entry in reversed(ranks)}
    columns = None
    # The columns describe all ranks, so they are left out of a failed run that lacks some.
    has_all_ranks = [entry["rank"] for entry in ranks] == list(range(world))
    has_all_nodes = len(hosts) * per_node == world
    if has_all_ranks and has_all_nodes:
        columns = {
            "ranks": world,
            "hosts": [hosts[node] for node in sorted(hosts)],
            "steps": usual_end.steps,
            "exit": usual_end.exit,
            "pids": pack([entry["pid"] for entry in ranks]),
            **_milliseconds_column(ranks, "processor"),
            **_milliseconds_column(ranks, "processor_wait"),
        }
    unusual = []
    for entry in ranks:
        if _end_of(entry) != usual_end or entry["host"] != hosts[entry["node"]]:
            unusual.append(entry)
    return {"ranks": unusual[:MOST_LISTED], "rank_columns": columns}


class _End(NamedTuple):
    """How a rank ended."""

    steps: int
    exit: str | None


def _end_of(entry: dict[str, Any]) -> _End:
    return _End(entry["steps"], entry["exit"])


def _milliseconds_column(ranks: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return a column with one time of every rank by its name; empty unless every rank has that time."""
    seconds = [entry[name + "_seconds"] for entry in ranks]
    if None in seconds:
        return {}
    return {name + "_milliseconds": pack([round(1000 * time) for time in seconds])}
