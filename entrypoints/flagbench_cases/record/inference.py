"""The sections of an inference record that are computed from its steps, as defined in rank/infer_loop.py."""

import math
from typing import Any, Dict, List

from flagbench_cases.record import metrics, sections
from flagbench_cases.record.evidence import Evidence
from flagbench_cases.record.passes import Pass, ended, passes
from flagbench_cases.record.request import Request
from flagbench_cases.shared.spool import Step

MEASURED = "infer"
"""The pass that window and utilisation refer to."""


def fill(record: Dict[str, Any], request: Request, evidence: Evidence, count: int) -> None:
    """Fill in everything computed from the steps, as far as the run got."""
    section = (request.config or {})["infer"]
    ranks, whole = evidence.steps, section["window_steps"] is None
    finished, seconds = record["status"]["state"] == "ok", evidence.first("timing")
    done, last = passes(evidence), ended(evidence, count)
    found: List[Dict[str, Any]] = []
    for one in (*done, last) if last else done:
        steady = metrics.window(ranks, one.first + section["warmup_steps"], one.end)
        if steady is None:
            continue
        found += throughput(ranks, one, steady, request, whole and one is not last)
        if one.name == MEASURED:
            found += sections.flops(record, request, evidence, steady)
            if request.preset == "reference":  # the publisher's formula is only valid for the published model
                precision = (request.config or {})["precision"]
                found += metrics.published_utilisation(
                    found, request.published_flops, request.layout.world, precision
                )
            record["window"] = sections.window(steady)
    if whole and finished and seconds:
        found.append(metrics.metric("e2e_time", seconds["e2e"], "s", n=1, note="excluding imports"))
    found += metrics.memory(evidence.of("memory"), request.stack["device"]["kind"])
    found += metrics.evaluated([e for e in evidence.of("evaluation") if e["rank"] == 0])
    record["metrics"] = [entry for entry in found if math.isfinite(entry["value"])]
    measured = next((one for one in (*done, last) if one and one.name == MEASURED), None)
    first, end = (measured.first, measured.end) if measured else (0, count)
    record["work"] = metrics.work(ranks, first, end, request.unit)
    record["timing"] = timing(seconds, ranks, count)
    record["quality"] = sections.quality(request, evidence, metrics.losses(ranks, count, request.layout), finished)


def throughput(
    ranks: Dict[int, List[Step]], one: Pass, steady: metrics.Window, request: Request, whole: bool
) -> List[Dict[str, Any]]:
    """p_infer_core and p_infer_core_host of a pass, p_infer_whole if it is `whole`; p_val_* for VALIDATE."""
    unit, replicas = request.unit, request.layout.dp
    core = "device time of the steps of rank %d, the slowest rank; excluding warm-up" % steady.rank
    amounts = steady.tokens if unit == "tokens" else steady.samples
    clock = ranks[min(ranks)][steady.first : one.end]
    published = [metrics.published_amount(step, unit) * replicas for step in clock]
    host = metrics.PUBLISHER + "rank 0's host clock, batches counted as full: step; excluding warm-up"
    found = [
        metrics.rate("p_%s_core" % one.name, unit, amounts, steady.seconds, core),
        metrics.rate("p_%s_core_host" % one.name, unit, published, [step.host for step in clock], host),
    ]
    useful = [
        sum(step.tokens_useful for step in row) for row in zip(*(s[steady.first : one.end] for s in ranks.values()))
    ]
    if unit == "tokens" and useful != steady.tokens:
        note = core + "; padding is not counted"
        found.append(metrics.rate("p_%s_core_useful" % one.name, unit, useful, steady.seconds, note))
    if whole:
        everything = [metrics.amount(step, unit) for steps in ranks.values() for step in steps[one.first : one.end]]
        note = "the whole pass including loading, by the slowest rank"
        found.append(metrics.whole("p_%s_whole" % one.name, unit, everything, max(one.seconds.values()), note))
    return found


def timing(seconds: Dict[str, Any], ranks: Dict[int, List[Step]], count: int) -> Dict[str, float]:
    """Rank 0's seconds by phase."""
    steps = ranks[min(ranks)][:count]
    found = {key: seconds[key] for key in ("init", "val", "infer", "e2e") if key in seconds}
    found["data_wait"] = sum(step.data_wait for step in steps)
    found["step"] = sum(step.device for step in steps)
    return found
