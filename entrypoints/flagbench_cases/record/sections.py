"""The sections of a record that training and inference have in common, computed from steps."""

import math
from typing import Any, Dict, List

from flagbench_cases.record import metrics, stats
from flagbench_cases.record.checks import checks
from flagbench_cases.record.evidence import Evidence
from flagbench_cases.record.request import Request

CURVE_POINTS = 200
STEP_POINTS = 2000


def window(steady: metrics.Window) -> Dict[str, Any]:
    """The record's `window`: the steps that p_core is computed from."""
    change = stats.drift(steady.seconds)
    return {
        "first_step": steady.first,
        "rank": steady.rank,
        "steps": len(steady.seconds),
        "samples": int(sum(steady.samples)),
        "seconds": math.fsum(steady.seconds),
        "host_seconds": steady.host_seconds,
        "step_seconds": stats.thin(steady.seconds, STEP_POINTS),
        "step_median": stats.median(steady.seconds),
        "step_p5_p95": [stats.quantile(steady.seconds, share) for share in (0.05, 0.95)],
        "drift": change,
        "steady": None if change is None else abs(change) <= 0.02,
    }


def flops(
    record: Dict[str, Any], request: Request, evidence: Evidence, steady: metrics.Window
) -> List[Dict[str, Any]]:
    """Fill in the `flops` section; returns the metrics derived from it."""
    config = request.config or {}
    name = record["conditions"].get("device_model")
    precision = record["conditions"].get("precision") or config["precision"]
    known = next((a for a in request.stack["accelerators"] if a["name"] == name), None)
    peak = known["peaks"].get(precision) if known else None
    ceilings = evidence.of("ceiling")
    ceiling = min(ceilings, key=lambda c: c["flops"]) if ceilings else None
    record["flops"] = {
        "formula": request.formula,
        "executed": steady.flops_executed,
        "recomputed": steady.flops_recomputed,
        "useful": steady.flops_useful,
        "peak": dict(peak, precision=precision) if peak else None,
        "peak_reason": None
        if peak
        else "the stack %s has no %s peak for %s" % (request.stack["name"], precision, name),
        "measured_ceiling": {k: ceiling[k] for k in ("flops", "precision", "method")} if ceiling else None,
    }
    devices = request.nodes * request.gpus
    return metrics.utilisation(
        steady, devices, peak["flops"] if peak else None, ceiling["flops"] if ceiling else None
    )


def quality(request: Request, evidence: Evidence, curve: List[float], finished: bool, **more: Any) -> Dict[str, Any]:
    """The record's `quality`; `more`: fields specific to training or inference."""
    evaluations = [e for e in evidence.of("evaluation") if e["rank"] == 0]
    workload = evidence.first("workload")
    points = (int(i) for i in stats.thin(range(len(curve)), CURVE_POINTS))
    return {
        "loss_curve": [[i, curve[i]] for i in points if math.isfinite(curve[i])],
        "evaluations": [{k: v for k, v in e.items() if k not in ("kind", "rank", "time")} for e in evaluations],
        "data": workload.get("data"),
        "parameters": workload.get("parameters"),
        "checks": checks(request, evidence, curve, finished),
        **more,
    }
