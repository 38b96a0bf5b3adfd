"""The sections of a training record that are computed from its steps."""

import math
from typing import Any, Dict, List

from flagbench_cases.record import metrics, pipeline, sections
from flagbench_cases.record.evidence import Evidence
from flagbench_cases.record.request import Request
from flagbench_cases.shared.spool import Step

# The longest published run, DistilBERT on one device, has 21,050 steps; with 11 bytes each, they are a quarter of the
# 1 MB that a record may have.
MAX_LOSSES = 24_000


def fill(record: Dict[str, Any], request: Request, evidence: Evidence, count: int) -> None:
    """Fill in everything computed from the steps, as far as the run got."""
    config = request.config or {}
    train, resumed = config["train"], evidence.first("resumed")
    ranks, evaluations = evidence.steps, [e for e in evidence.of("evaluation") if e["rank"] == 0]
    seconds, whole = evidence.first("timing"), train["window_steps"] is None
    finished = record["status"]["state"] == "ok"
    curve = metrics.losses(ranks, count, request.layout)
    found: List[Dict[str, Any]] = []
    steady = metrics.window(ranks, train["warmup_steps"], count)
    # The times of a resumed run do not include the steps before the checkpoint.
    entire = whole and finished and not resumed
    if steady is not None:
        train_seconds = metrics.train_seconds(evidence.of("timing")) if entire else None
        found += metrics.throughput(ranks, steady, count, request.unit, train_seconds, request.layout.dp)
        found += sections.flops(record, request, evidence, steady)
        if request.preset == "reference":  # the publisher's formula is only valid for the published model
            precision = config["precision"]
            found += metrics.published_utilisation(found, request.published_flops, request.layout.world, precision)
        record["window"] = sections.window(steady)
    bubbles = pipeline.bubbles(ranks, train["warmup_steps"], count, request.layout)
    for entry in record["ranks"]:
        if entry["rank"] in bubbles:
            entry["bubble"] = bubbles[entry["rank"]]
    if entire and seconds:
        found.append(metrics.metric("e2e_time", seconds["e2e"], "s", n=1, note="excluding imports"))
    found += metrics.memory(evidence.of("memory"), request.stack["device"]["kind"])
    found += metrics.evaluated(evaluations)
    found += metrics.final_loss(curve)
    record["metrics"] = [entry for entry in found if math.isfinite(entry["value"])]
    record["work"] = metrics.work(ranks, 0, count, request.unit)
    record["timing"] = timing(seconds, ranks, train["warmup_steps"], count)
    record["quality"] = sections.quality(
        request,
        evidence,
        curve,
        finished,
        losses=losses(curve, resumed.get("step", 0)),
        converged=seconds.get("converged"),
        resumed=resumed or None,
        training={**evidence.first("training"), **pipeline.facts(bubbles, request.layout)} or None,
    )


def timing(timing: Dict[str, Any], ranks: Dict[int, List[Step]], warmup: int, count: int) -> Dict[str, float]:
    """Rank 0's seconds by phase."""
    steps = ranks[min(ranks)][:count]
    found = {
        key: timing[key] for key in ("init", "train", "eval", "eval_initial", "checkpoint", "e2e") if key in timing
    }
    found["warmup"] = sum(metrics.own_seconds(s) for s in steps[:warmup])
    found["data_wait"] = sum(s.data_wait for s in steps)
    found["step"] = sum(s.device for s in steps)
    return found


def losses(curve: List[float], first_step: int) -> Dict[str, Any]:
    """The loss of each of the first MAX_LOSSES steps, in nine digits, which tell any two numbers in fp32 apart.

    `first_step`: the number of the first step in the published run, from 0; later if the run was resumed.
    """
    values = [float("%.9g" % loss) if math.isfinite(loss) else None for loss in curve[:MAX_LOSSES]]
    return {"first_step": first_step, "steps": len(curve), "values": values}
