"""The verdict: whether the records are valid, comparable, and fast enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from flagbench.console.terminal import brief
from flagbench.manifests.rows import Anomaly
from flagbench.records.model import Metric, Record
from flagbench.verdict.claim_limits import HIGH, LOW, classify, is_speed
from flagbench.verdict.conditions import gate_spec
from flagbench.verdict.early_end import EarlyEnd, early_end
from flagbench.verdict.interval import Terms, candidates, differing_conditions, half_widths, rates, without_interval
from flagbench.verdict.result import (
    CitedRow,
    Compared,
    Estimate,
    Finding,
    Findings,
    MetricResult,
    Ratio,
    Verdict,
    Verification,
    VerifyResult,
)
from flagbench.verdict.stats.between import MOST_RUNS, RUNS_FOR_STUDENT, further_runs
from flagbench.verdict.stats.faster_or_slower import SideOutcome, further_each, side_outcome
from flagbench.verdict.subject import Subject

_DECIDED_BY = {
    SideOutcome.SAME: "all of the interval counts as the same",
    SideOutcome.FASTER: "the interval lies above 1",
    SideOutcome.SLOWER: "the interval lies below 1",
    SideOutcome.INCONCLUSIVE: "the interval contains 1, and ratios that do not count as the same",
}
_ENOUGH = (Verdict.REPRODUCED, Verdict.ABOVE, Verdict.FASTER, Verdict.SAME)
"""Verdicts that slower runs would not have got: a doubt about the runs takes them away."""
_SLOWER = (Verdict.SLOWER, Verdict.SAME)
"""Verdicts that a slower baseline would not have given: a doubt about the baseline takes them away."""


class _Judgement(NamedTuple):
    """The verdict of the whole with its reason, and what it rests on."""

    verdict: Verdict
    reason: str
    metrics: tuple[MetricResult, ...] = ()
    findings: tuple[Finding, ...] = ()
    """The findings that led to the verdict."""
    ended: EarlyEnd | None = None


def judge(verification: Verification, findings: Findings, terms: Terms) -> VerifyResult:
    """The verdict of the whole: that of the gate metric, unless a record is invalid or has no evidence."""
    if findings.invalid:
        judgement = _judge_invalid(verification, findings)
    else:
        judgement = _judge_metrics(verification, findings, terms)
    qualifiers: tuple[Finding, ...] = ()
    if judgement.verdict not in (Verdict.INVALID, Verdict.NOT_COMPARABLE):
        qualifiers = findings.qualifiers
    if judgement.verdict is not Verdict.INVALID:
        judgement = _require_evidence(judgement, verification)
    not_compared: list[str] = []
    for subject in verification.subjects:
        not_compared.extend(subject.not_compared)
    return VerifyResult(
        verdict=judgement.verdict,
        qualifiers=tuple(finding.message for finding in qualifiers),
        reason=judgement.reason,
        gate=verification.case.gate,
        against=verification.against,
        records=tuple(subject.record.record_id for subject in verification.subjects),
        metrics=judgement.metrics,
        conditions=verification.conditions,
        anomalies=_select_anomalies(verification, judgement.metrics),
        not_compared=tuple(dict.fromkeys(not_compared)),
        findings=(*judgement.findings, *qualifiers),
        ended=judgement.ended,
    )


def _judge_invalid(verification: Verification, findings: Findings) -> _Judgement:
    """INVALID, with all that was found in the first record that is."""
    record_id = findings.invalid[0].record
    messages = [finding.message for finding in findings.invalid if finding.record == record_id]
    ended = None
    for subject in verification.subjects:
        if subject.record.record_id == record_id:
            ended = early_end(subject.record.status.state, subject.record.status.exit_code)
            break
    return _Judgement(
        Verdict.INVALID,
        reason=f"record {record_id}: {'; '.join(messages)}",
        findings=findings.invalid,
        ended=ended,
    )


def _judge_metrics(verification: Verification, findings: Findings, terms: Terms) -> _Judgement:
    """The verdict of the gate metric; NOT_COMPARABLE without one."""
    metrics = []
    gate: MetricResult | None = None
    gate_doubts: tuple[Finding, ...] = ()
    for compared in verification.metrics:
        metric, doubts = _judge_metric(compared, verification, findings, terms)
        metrics.append(metric)
        if gate is None and metric.name == verification.case.gate:
            gate, gate_doubts = metric, doubts
    if gate is None:
        reason = _reason_without_gate(verification, metrics)
        return _Judgement(Verdict.NOT_COMPARABLE, reason, tuple(metrics))
    if gate.verdict is not None:
        return _Judgement(gate.verdict, gate.reason, tuple(metrics), gate_doubts)
    # Not every record has the gate metric, or this version cannot compute it.
    spec = gate_spec(verification.case)
    differing = list(
        differing_conditions(verification.case, verification.against, verification.conditions, spec, gate.held_by)
    )
    verdict = Verdict.NOT_COMPARABLE if differing else Verdict.INCONCLUSIVE
    return _Judgement(verdict, "; ".join([gate.reason, *differing]), tuple(metrics), gate_doubts)


def _require_evidence(judgement: _Judgement, verification: Verification) -> _Judgement:
    """The judgement as it is if all records have evidence; else INCONCLUSIVE."""
    for subject in (*verification.subjects, *verification.baseline):
        reason = no_evidence(subject)
        if reason is None:
            continue
        if judgement.verdict is Verdict.NOT_COMPARABLE:
            reason = f"{reason}; it is not comparable either: {judgement.reason}"
        metrics = tuple(_withdraw_verdict(metric) for metric in judgement.metrics)
        return judgement._replace(verdict=Verdict.INCONCLUSIVE, reason=reason, metrics=metrics)
    return judgement


def _select_anomalies(verification: Verification, metrics: Sequence[MetricResult]) -> tuple[Anomaly, ...]:
    """The anomalies of a claim in the metrics and conditions that were compared."""
    if verification.claim is None or not metrics:
        return ()
    compared = {metric.name for metric in metrics}
    compared.update(condition.name for condition in verification.conditions)
    return tuple(anomaly for anomaly in verification.claim.anomalies if anomaly.field in compared)


def judge_reference(
    verification: Verification, findings: Findings, terms: Terms, rows: Sequence[CitedRow]
) -> VerifyResult:
    """As `judge`, but REFERENCE instead of a verdict on speed: a cited row says too little about its run for one.

    `rows`: with their ratios; the verification has the metric of the first one.
    """
    result = judge(verification, findings, terms)
    (compared,) = verification.metrics
    metric = compared.result
    if result.verdict is Verdict.INVALID or not metric.comparable or metric.ratio is None:
        return result
    if any(no_evidence(subject) for subject in verification.subjects):
        return result
    doubts, _ = findings.doubts[metric.name]
    measured = metric.measured or Estimate(0.0, 0)
    text = f"{metric.held_by} {_estimate_text(measured, metric.unit)}, cited row {_estimate_text(metric.expected)}"
    reason = "; ".join([f"{text}: ratio {metric.ratio}", *(doubt.message for doubt in doubts)])
    return replace(
        result,
        verdict=Verdict.REFERENCE,
        reason=reason,
        metrics=(replace(metric, verdict=Verdict.REFERENCE, reason=reason),),
        findings=(*doubts, *findings.qualifiers),
        cited=tuple(rows),
    )


def no_evidence(subject: Subject) -> str | None:
    """Why the numbers of a record cannot be checked; None if they can."""
    record = subject.record
    if record.evidence is not None:
        return None
    remedy = "run the case again with this version of flagbench"
    if record.evidence_reason is not None:
        remedy = brief(record.evidence_reason)
    return (
        f"no evidence: the record {record.record_id} does not contain the step times that its numbers were computed "
        f"from, so they cannot be checked; {remedy}"
    )


def _withdraw_verdict(metric: MetricResult) -> MetricResult:
    """A comparison of numbers that cannot be checked, which gives no verdict."""
    if metric.verdict in (None, Verdict.INVALID, Verdict.NOT_COMPARABLE):
        return metric
    return replace(metric, verdict=Verdict.INCONCLUSIVE, reason=f"no evidence; {metric.reason}")


def _reason_without_gate(verification: Verification, metrics: Sequence[MetricResult]) -> str:
    """Why there is no verdict on speed, and which other metrics can be compared."""
    kind = verification.against.kind
    clauses = [f"the {kind} publishes no {verification.case.gate}, so there is no verdict on speed"]
    comparable = [metric.name for metric in metrics if metric.comparable]
    if comparable:
        clauses.append(f"comparable here: {', '.join(comparable)}")
    for metric in metrics:
        # Nothing differs of a metric that was not measured, so its own reason says more than a condition would.
        if not metric.comparable:
            clauses.append(f"{metric.name} cannot be compared: {metric.reason}")
    return "; ".join(clauses)


def _judge_metric(
    compared: Compared, verification: Verification, findings: Findings, terms: Terms
) -> tuple[MetricResult, tuple[Finding, ...]]:
    """A metric with its verdict, INCONCLUSIVE with the reasons if doubts take that away, and these doubts."""
    metric = compared.result
    if not compared.runs:
        return metric, ()
    if not metric.comparable:
        if is_speed(compared.spec):
            metric = replace(metric, verdict=Verdict.NOT_COMPARABLE)
        return metric, ()
    metric = _judge_speed(compared, verification, terms)
    about_runs, about_baseline = findings.doubts[metric.name]
    doubts: list[Finding] = []
    clauses = [metric.reason]
    if metric.verdict in _ENOUGH:
        doubts.extend(about_runs)
        clauses.extend(doubt.message for doubt in about_runs)
    if metric.verdict in _SLOWER:
        doubts.extend(about_baseline)
        clauses.extend(f"the baseline: {doubt.message}" for doubt in about_baseline)
    if not doubts:
        return metric, ()
    return replace(metric, verdict=Verdict.INCONCLUSIVE, reason="; ".join(clauses)), tuple(doubts)


def _judge_speed(compared: Compared, verification: Verification, terms: Terms) -> MetricResult:
    """A comparable metric with its verdict, and the numbers behind it."""
    spec, metric, against = compared.spec, compared.result, verification.against
    name, measured = metric.held_by, metric.measured or Estimate(0.0, 0)
    text = f"{name} {_estimate_text(measured, metric.unit)}, {against.kind} {_estimate_text(metric.expected)}"
    if not is_speed(spec):
        text = f"{text}: {spec.name} is not a speed, so the limits {LOW:.2f} to {HIGH:.2f} do not fit it"
        return replace(metric, reason=text)
    if metric.ratio is None:
        text = f"{text}: no ratio, a value is not positive or the model not published"
        return replace(metric, verdict=Verdict.INCONCLUSIVE, reason=text)
    records = [subject.record for subject in verification.subjects]
    if compared.baseline:
        baseline = [subject.record for subject in verification.baseline]
        ratio, verdict, reason = _judge_against_baseline(metric.ratio, compared, records, baseline, terms)
        return replace(metric, ratio=ratio, verdict=verdict, reason=f"{text}: ratio {ratio}, {reason}")
    text = f"{text}: ratio {metric.ratio}, allowed {LOW:.2f} to {HIGH:.2f}"
    if name != candidates(spec, against)[0]:
        text = f"{text}; {name} itself is held, the record has no {spec.held_by}"
    verdict, doubt = _judge_against_claim(metric.ratio, compared, records, terms)
    if doubt is not None:
        text = f"{text}; {doubt}"
    return replace(metric, verdict=verdict, reason=text)


def _judge_against_claim(
    ratio: Ratio, compared: Compared, records: Sequence[Record], terms: Terms
) -> tuple[Verdict, str | None]:
    """The verdict on a ratio to a claim, and why it is inconclusive."""
    verdict = classify(ratio)
    if verdict is not Verdict.INCONCLUSIVE:
        strict = compared.strict
        if strict is None or classify(strict) is verdict:
            return verdict, None
        reason = f"as it is looked at more than once, it has to hold at {terms.level:.2%}, where it is {strict}"
        return Verdict.INCONCLUSIVE, reason
    if ratio.ci95 is None:
        reason = _no_interval_reason(records, compared.runs) or "a value is not positive, so there is no interval"
        return verdict, reason
    more = _count_further_runs(ratio, compared, terms, apart=False)
    if more is not None:
        return verdict, f"the interval crosses a limit; {_advice(more)}"
    more = _count_further_runs(ratio, compared, terms, apart=True)
    return verdict, f"the interval crosses a limit; {_advice(more, ', each in another session,')}"


def _count_further_runs(ratio: Ratio, compared: Compared, terms: Terms, *, apart: bool) -> int | None:
    """How many more runs would decide an inconclusive ratio; `apart`: each in a session of its own."""

    def decided(low: float, high: float) -> bool:
        interval = (ratio.value * low, ratio.value * high)
        return classify(Ratio(ratio.value, interval)) is not Verdict.INCONCLUSIVE

    return further_runs(
        decided,
        rates(compared.runs),
        half_widths(compared.runs),
        terms.prior(compared.runs[0].name),
        session=compared.session,
        apart=apart,
    )


def _judge_against_baseline(
    ratio: Ratio, compared: Compared, records: Sequence[Record], baseline: Sequence[Record], terms: Terms
) -> tuple[Ratio, Verdict, str]:
    """The ratio to a baseline, the verdict on it, and why it is inconclusive or what it was decided by."""
    reason = _no_interval_reason(records, compared.runs)
    if reason is not None:
        return Ratio(ratio.value), Verdict.INCONCLUSIVE, reason
    reason = _no_interval_reason(baseline, compared.baseline)
    if reason is not None:
        return Ratio(ratio.value), Verdict.INCONCLUSIVE, f"the baseline: {reason}"
    assert ratio.ci95 is not None  # that of two sides has one
    outcome = side_outcome(ratio.ci95, terms.within)
    reason = _DECIDED_BY[outcome]
    if outcome is SideOutcome.INCONCLUSIVE:
        reason = f"{reason}; {_advice_for_both_sides(compared, terms)}"
    limits = f"{1 - terms.within:g} to {1 + terms.within:g} counts as the same"
    return ratio, Verdict[outcome.name], f"{limits}; {reason}"


def _advice_for_both_sides(compared: Compared, terms: Terms) -> str:
    """How many more runs or sessions would decide, and whether runs in one session may."""
    further = further_each(compared.sides, within=terms.within, prior=terms.prior(compared.runs[0].name))
    if further is None:
        advice = _advice(None, " on each side")
    else:
        advice = _advice(further.more, " on each side", further.unit)
    share_all_sessions = all(session.measured and session.baseline for session in compared.sides)
    if not share_all_sessions and (further is None or further.unit == "session"):
        advice = f"{advice}; runs of both sides in one session may"
    return advice


def _no_interval_reason(records: Sequence[Record], runs: Sequence[Metric]) -> str | None:
    """Why the windows of the runs give no interval, None if they do."""
    places = without_interval(runs)
    if 2 * len(places) <= len(runs):
        return None
    reason = runs[places[0]].ci_reason
    if reason is None:
        reason = f"its record has none, and {RUNS_FOR_STUDENT} runs would give one between them"
    if len(runs) == 1:
        return f"one value, no interval: {reason}"
    return f"{len(places)} of {len(runs)} runs have no interval ({records[places[0]].record_id}: {reason})"


def _advice(more: int | None, where: str = "", unit: str = "run") -> str:
    if more is None:
        return f"{MOST_RUNS} runs{where} would probably not decide it"
    if more > 1:
        unit = f"{unit}s"
    return f"about {more} more {unit}{where} would decide"


def _estimate_text(estimate: Estimate, unit: str = "") -> str:
    """An estimate with its number of runs: a single run says least about how runs differ."""
    if estimate.runs == 0:
        return estimate.text()
    if estimate.runs == 1:
        return f"{estimate.text(unit)} (one run)"
    return f"{estimate.text(unit)} ({estimate.runs} runs)"
