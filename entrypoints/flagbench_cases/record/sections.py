"""Fills in the sections of a record that are computed from its steps, such as evidence, metrics and quality."""

from __future__ import annotations

import math
from typing import Any

from flagbench_cases.record import measured
from flagbench_cases.record.checks import Subject, make_checks
from flagbench_cases.record.evidence import Evidence
from flagbench_cases.record.request import Request
from flagbench_core.case_kinds import MEASURE, TRAIN
from flagbench_core.config import schedule
from flagbench_core.evidence.derive import CURVE_POINTS, derive
from flagbench_core.evidence.document import digest_of
from flagbench_core.evidence.generation import generation_of
from flagbench_core.evidence.metrics import Facts
from flagbench_core.stats import summary

CEILING_FIELDS = ("flops", "precision", "method", "steady", "spread")
"""The fields of a ceiling in a record: the rate of a large matmul, which each rank measures after the run."""


def fill(
    record: dict[str, Any], request: Request, evidence: Evidence, count: int, block: int, packed: bool = False
) -> None:
    """Fill in the evidence of `count` steps, in blocks of `block` steps, and everything computed from it.

    `packed`: lists by rank are in their shortest form, and there are no losses of single ranks.
    """
    record_evidence = measured.build_record_evidence(request, evidence, count, block)
    curve = measured.average_losses(evidence.steps, count, request.layout)
    finished = record["status"]["state"] == "ok"
    evaluations = [fact for fact in evidence.all("evaluation") if fact["rank"] == 0]
    peak = peak_of(record, request)
    facts = facts_of(request, evidence, curve, evaluations, peak, finished)
    derived = derive(record_evidence, facts)
    record["evidence"] = record_evidence.to_json(packed=packed)
    record["evidence_digest"] = digest_of(record["evidence"])
    record.update(metrics=derived.metrics, window=derived.window, work=derived.work, timing=derived.timing)
    for entry in record["ranks"]:
        entry.update(derived.ranks[entry["rank"]])
    if derived.flops is not None:
        record["flops"] = flops(record, request, evidence, derived.flops, peak)
    subject = Subject(request, evidence, curve, record_evidence)
    record["quality"] = quality(subject, evaluations, finished)
    if request.kind == MEASURE or record_evidence.roofs:
        record.update(measurements=derived.measurements, slow_devices=derived.slow_devices)
        record["quality"]["absent"] = {fact["name"]: fact["reason"] for fact in evidence.all("absent")}
    if facts.generation is not None and derived.window is not None:
        absent = measured.explain_absent_iterations(evidence, facts.generation, derived.metrics)
        record["quality"].setdefault("absent", {}).update(absent)
    if request.kind == MEASURE or evidence.all("results"):
        record["results"] = measured.compare_results(evidence)
    if request.kind == TRAIN:
        record["quality"].update(training_quality(subject, derived.pipeline))


def facts_of(
    request: Request,
    evidence: Evidence,
    curve: list[float],
    evaluations: list[dict[str, Any]],
    peak: dict[str, Any] | None,
    finished: bool,
) -> Facts:
    """Return the facts that metrics depend on in addition to the evidence of the steps.

    `peak`: as returned by `peak_of`. `finished`: whether the run came to its end.
    """
    config = request.config or {}
    published = None
    # The publisher's formula is only valid for the published model.
    if request.preset == "reference":
        published = request.published_flops
    peak_flops = None
    if peak is not None:
        peak_flops = peak["flops"]
    return Facts(
        kind=request.kind,
        unit=request.unit,
        replicas=request.layout.dp,
        # The times of a resumed run do not include the steps before the checkpoint.
        complete=finished and schedule(config)["window_steps"] is None and not evidence.first("resumed"),
        precision=config["precision"],
        published=published,
        peak=peak_flops,
        device_kind=request.stack["device"]["kind"],
        evaluations=evaluations,
        losses=measured.round_last_losses(curve),
        stages=request.layout.pp,
        counted=request.formula is not None,
        nodes=request.nodes,
        generation=generation_of(config),
    )


def precision_of(record: dict[str, Any], request: Request) -> str:
    """Return the precision in which the run's matmuls ran, or else the requested one."""
    return record["conditions"].get("precision") or (request.config or {})["precision"]


def peak_of(record: dict[str, Any], request: Request) -> dict[str, Any] | None:
    """Return the peak of the run's devices in its precision, as {"flops": FLOP/s, "source": ...}.

    It is from the stack's manifest; None if that has none.
    """
    model = record["conditions"].get("device_model")
    for device in request.stack["accelerators"]:
        if device["name"] == model:
            return device["peaks"].get(precision_of(record, request))
    return None


def flops(
    record: dict[str, Any],
    request: Request,
    evidence: Evidence,
    sums: dict[str, Any],
    peak: dict[str, Any] | None,
) -> dict[str, Any]:
    """Return the record's `flops`: the sums with their formula, the peak with its source, and the ceiling."""
    precision = precision_of(record, request)
    reason = None
    if peak is None:
        model = record["conditions"].get("device_model")
        reason = f"the stack {request.stack['name']} has no {precision} peak for {model}"
    else:
        peak = dict(peak, precision=precision)
    return {
        **sums,
        "formula": request.formula,
        "peak": peak,
        "peak_reason": reason,
        "measured_ceiling": ceiling_of(evidence, sums["measured_ceiling"]),
    }


def ceiling_of(evidence: Evidence, flops_per_second: float | None) -> dict[str, Any] | None:
    """Return the record's entry of the ceiling that was measured at this rate, or None if there is none."""
    for fact in evidence.all("ceiling"):
        if fact["flops"] == flops_per_second:
            return {name: fact[name] for name in CEILING_FIELDS if name in fact}
    return None


def quality(subject: Subject, evaluations: list[dict[str, Any]], finished: bool) -> dict[str, Any]:
    """Return the fields of `quality` that all cases have."""
    curve = subject.curve
    workload = subject.evidence.first("workload")
    points = [int(index) for index in summary.thin(range(len(curve)), CURVE_POINTS)]
    rows = []
    for evaluation in evaluations:
        rows.append({name: evaluation[name] for name in evaluation if name not in ("kind", "rank", "time")})
    return {
        "loss_curve": [[index, curve[index]] for index in points if math.isfinite(curve[index])],
        "evaluations": rows,
        "data": workload.get("data"),
        "parameters": workload.get("parameters"),
        "checks": make_checks(subject, finished),
    }


def training_quality(subject: Subject, pipeline: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of `quality` that training adds.

    `pipeline`: the bubbles, shares of time in which a pipeline's stages wait, of the job and of its stages.
    """
    evidence = subject.evidence
    resumed = evidence.first("resumed")
    return {
        "losses": measured.describe_losses(subject.curve, resumed.get("step", 0)),
        "converged": evidence.first("timing").get("converged"),
        "resumed": resumed or None,
        "training": {**evidence.first("training"), **pipeline} or None,
    }
