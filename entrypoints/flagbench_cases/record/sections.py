"""The sections of a record that are computed from its steps."""

from __future__ import annotations

import math
from typing import Any

from flagbench_cases.record import measured
from flagbench_cases.record.checks import Subject, checks
from flagbench_cases.record.evidence import Evidence
from flagbench_cases.record.request import Request
from flagbench_core.config import schedule
from flagbench_core.evidence.derive import CURVE_POINTS, derive
from flagbench_core.evidence.metrics import Facts
from flagbench_core.evidence.section import MEASURE, TRAIN, digest_of
from flagbench_core.stats import summary

CEILING = ("flops", "precision", "method", "steady", "spread")
"""What a record says of the matrix product of its run."""


def fill(
    record: dict[str, Any], request: Request, evidence: Evidence, count: int, block: int, packed: bool = False
) -> None:
    """Fill in the evidence of `count` steps, in blocks of steps, and everything computed from it.

    `packed`: lists by rank are in their shortest form, and there are no losses of single ranks.
    """
    config = request.config or {}
    section = measured.section_of(request, evidence, count, block)
    curve = measured.curve_of(evidence.steps, count, request.layout)
    finished = record["status"]["state"] == "ok"
    precision = record["conditions"].get("precision") or config["precision"]
    evaluations = [e for e in evidence.all("evaluation") if e["rank"] == 0]
    peak = peak_of(record, request, precision)
    facts = Facts(
        kind=request.kind,
        unit=request.unit,
        replicas=request.layout.dp,
        # The times of a resumed run do not include the steps before the checkpoint.
        complete=finished and schedule(config)["window_steps"] is None and not evidence.first("resumed"),
        precision=config["precision"],
        # The publisher's formula is only valid for the published model.
        published=request.published_flops if request.preset == "reference" else None,
        peak=peak["flops"] if peak else None,
        device_kind=request.stack["device"]["kind"],
        evaluations=evaluations,
        losses=measured.tail_of(curve),
        stages=request.layout.pp,
        counted=request.formula is not None,
        nodes=request.nodes,
    )
    found = derive(section, facts)
    record["evidence"] = section.to_json(packed=packed)
    record["evidence_digest"] = digest_of(record["evidence"])
    record.update(metrics=found.metrics, window=found.window, work=found.work, timing=found.timing)
    for entry in record["ranks"]:
        entry.update(found.ranks[entry["rank"]])
    if found.flops is not None:
        record["flops"] = flops(record, request, evidence, found.flops, peak, precision)
    subject = Subject(request, evidence, curve, section)
    record["quality"] = quality(subject, evaluations, finished)
    if request.kind == MEASURE or section.roofs:
        record.update(measurements=found.measurements, slow_devices=found.slow_devices)
        record["quality"]["absent"] = {fact["name"]: fact["reason"] for fact in evidence.all("absent")}
    if request.kind == MEASURE:
        record["results"] = measured.results(evidence)
    if request.kind == TRAIN:
        record["quality"].update(training_quality(subject, found.pipeline))


def peak_of(record: dict[str, Any], request: Request, precision: str) -> dict[str, Any] | None:
    """The peak of the run's devices in its precision, from the stack's manifest; None if that has none."""
    name = record["conditions"].get("device_model")
    known = next((a for a in request.stack["accelerators"] if a["name"] == name), None)
    return known["peaks"].get(precision) if known else None


def flops(
    record: dict[str, Any],
    request: Request,
    evidence: Evidence,
    found: dict[str, Any],
    peak: dict[str, Any] | None,
    precision: str,
) -> dict[str, Any]:
    """The record's `flops`: the sums with their formula, the peak with its source, the ceiling with its method."""
    ceiling = next((c for c in evidence.all("ceiling") if c["flops"] == found["measured_ceiling"]), None)
    reason = (
        f"the stack {request.stack['name']} has no {precision} peak for {record['conditions'].get('device_model')}"
    )
    return {
        **found,
        "formula": request.formula,
        "peak": dict(peak, precision=precision) if peak else None,
        "peak_reason": None if peak else reason,
        "measured_ceiling": {k: ceiling[k] for k in CEILING if k in ceiling} if ceiling else None,
    }


def quality(subject: Subject, evaluations: list[dict[str, Any]], finished: bool) -> dict[str, Any]:
    """The record's `quality`, as far as all cases have it."""
    curve, workload = subject.curve, subject.evidence.first("workload")
    points = (int(i) for i in summary.thin(range(len(curve)), CURVE_POINTS))
    return {
        "loss_curve": [[i, curve[i]] for i in points if math.isfinite(curve[i])],
        "evaluations": [{k: v for k, v in e.items() if k not in ("kind", "rank", "time")} for e in evaluations],
        "data": workload.get("data"),
        "parameters": workload.get("parameters"),
        "checks": checks(subject, finished),
    }


def training_quality(subject: Subject, pipeline: dict[str, Any]) -> dict[str, Any]:
    """The fields of `quality` that training adds. `pipeline`: the bubbles of the job and of its stages."""
    evidence = subject.evidence
    resumed = evidence.first("resumed")
    return {
        "losses": measured.losses(subject.curve, resumed.get("step", 0)),
        "converged": evidence.first("timing").get("converged"),
        "resumed": resumed or None,
        "training": {**evidence.first("training"), **pipeline} or None,
    }
