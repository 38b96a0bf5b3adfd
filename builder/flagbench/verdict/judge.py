"""Decide the verdict from compared metrics and rule findings: are the records valid, comparable, and fast enough?

`verify` calls `judge` as its last step. Each comparable metric gets a verdict of its own. The verdict of the case's
gate (the metric that decides) becomes that on the records, unless one of them is INVALID or has no evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from flagbench.console.terminal import brief
from flagbench.manifests.rows import Anomaly
from flagbench.records.model import Metric
from flagbench.verdict.claim_limits import HIGH, LOW, classify, is_speed
from flagbench.verdict.conditions import ConditionResult, describe_all
from flagbench.verdict.early_end import EarlyEnd, find_early_end
from flagbench.verdict.interval import (
    Terms,
    compute_half_widths,
    find_without_interval,
    list_candidates,
    list_values,
)
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
from flagbench.verdict.stats.between import MOST_RUNS, RUNS_FOR_STUDENT, count_further_runs
from flagbench.verdict.stats.faster_or_slower import SideOutcome, classify_sides, count_further_on_each_side
from flagbench.verdict.subject import Subject

_DECIDED_BY = {
    SideOutcome.SAME: "all of the interval counts as the same",
    SideOutcome.FASTER: "the interval lies above 1",
    SideOutcome.SLOWER: "the interval lies below 1",
    SideOutcome.INCONCLUSIVE: "the interval contains 1, and ratios that do not count as the same",
}
"""Why a comparison with a baseline has its outcome, as a clause."""
_FAST_ENOUGH = (Verdict.REPRODUCED, Verdict.ABOVE, Verdict.FASTER, Verdict.SAME)
"""Verdicts that slower runs might not have got: a doubt about the runs makes them INCONCLUSIVE."""
_BASELINE_FAST_ENOUGH = (Verdict.SLOWER, Verdict.SAME)
"""Verdicts that a slower baseline might not have led to: a doubt about the baseline makes them INCONCLUSIVE."""


class _Judgement(NamedTuple):
    """The verdict on the records with its reason, and the metrics and findings that it rests on."""

    verdict: Verdict
    reason: str
    metrics: tuple[MetricResult, ...] = ()
    findings: tuple[Finding, ...] = ()
    """The findings that led to the verdict."""
    ended: EarlyEnd | None = None
    """For INVALID, how the run ended early; None if it ended by itself."""
    forbidding: tuple[ConditionResult, ...] = ()
    """The conditions whose difference forbids to compare the gate."""


class _JudgedMetric(NamedTuple):
    """A metric with its verdict, and the doubts that made the verdict INCONCLUSIVE."""

    result: MetricResult
    doubts: tuple[Finding, ...] = ()


class _SpeedVerdict(NamedTuple):
    """The verdict on a ratio, with a reason: why it is inconclusive, or what decided it. None if nothing is to be
    said beside the ratio and its limits."""

    verdict: Verdict
    reason: str | None = None


def judge(verification: Verification, findings: Findings, terms: Terms) -> VerifyResult:
    """Return the verdict on the records: that of the gate metric, unless a record is invalid or has no evidence."""
    if findings.invalid:
        judgement = _judge_invalid(verification, findings)
    else:
        judgement = _judge_metrics(verification, findings, terms)
    qualifiers: tuple[Finding, ...] = ()
    if judgement.verdict not in (Verdict.INVALID, Verdict.NOT_COMPARABLE):
        qualifiers = findings.qualifiers
    if judgement.verdict is not Verdict.INVALID:
        judgement = _require_evidence(judgement, verification)
    forbidding: tuple[ConditionResult, ...] = ()
    if judgement.verdict is Verdict.NOT_COMPARABLE:
        forbidding = judgement.forbidding
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
        not_compared=_list_not_compared(verification.subjects),
        findings=(*judgement.findings, *qualifiers),
        ended=judgement.ended,
        forbidding=forbidding,
    )


def _list_not_compared(subjects: Sequence[Subject]) -> tuple[str, ...]:
    """Return the metrics, fields and checks of the records to which no rule was applied, each once."""
    not_compared: dict[str, None] = {}
    for subject in subjects:
        not_compared.update(dict.fromkeys(subject.not_compared))
    return tuple(not_compared)


def _judge_invalid(verification: Verification, findings: Findings) -> _Judgement:
    """Return INVALID; the reason lists all findings about the first invalid record."""
    record_id = findings.invalid[0].record
    messages = [finding.message for finding in findings.invalid if finding.record == record_id]
    ended = None
    for subject in verification.subjects:
        if subject.record.record_id == record_id:
            ended = find_early_end(subject.record.status.state, subject.record.status.exit_code)
            break
    return _Judgement(
        Verdict.INVALID,
        reason=f"record {record_id}: {'; '.join(messages)}",
        findings=findings.invalid,
        ended=ended,
    )


def _judge_metrics(verification: Verification, findings: Findings, terms: Terms) -> _Judgement:
    """Judge each metric, and return the verdict of the gate metric; NOT_COMPARABLE if the other side has no gate."""
    metrics = []
    gate: _JudgedMetric | None = None
    forbidding: tuple[ConditionResult, ...] = ()
    for compared in verification.metrics:
        judged = _judge_metric(compared, verification, findings, terms)
        metrics.append(judged.result)
        if gate is None and judged.result.name == verification.case.gate:
            gate = judged
            forbidding = compared.forbidding
    if gate is None:
        reason = _explain_missing_gate(verification, metrics)
        return _Judgement(Verdict.NOT_COMPARABLE, reason, tuple(metrics))
    if gate.result.verdict is not None:
        return _Judgement(gate.result.verdict, gate.result.reason, tuple(metrics), gate.doubts, forbidding=forbidding)
    # Not every record has the gate metric, or this version cannot compute it.
    if not forbidding:
        return _Judgement(Verdict.INCONCLUSIVE, gate.result.reason, tuple(metrics), gate.doubts)
    reason = f"{gate.result.reason}; {describe_all(forbidding, side=verification.against.side)}"
    return _Judgement(Verdict.NOT_COMPARABLE, reason, tuple(metrics), gate.doubts, forbidding=forbidding)


def _require_evidence(judgement: _Judgement, verification: Verification) -> _Judgement:
    """Return the judgement unchanged if all records have evidence (the step times behind their numbers).

    Otherwise its verdict and those of its metrics become INCONCLUSIVE.
    """
    for subject in (*verification.subjects, *verification.baseline):
        reason = explain_missing_evidence(subject)
        if reason is None:
            continue
        if judgement.verdict is Verdict.NOT_COMPARABLE:
            reason = f"{reason}; it is not comparable either: {judgement.reason}"
        metrics = tuple(_withdraw_verdict(metric) for metric in judgement.metrics)
        return judgement._replace(verdict=Verdict.INCONCLUSIVE, reason=reason, metrics=metrics)
    return judgement


def _select_anomalies(verification: Verification, metrics: Sequence[MetricResult]) -> tuple[Anomaly, ...]:
    """Return the anomalies (known oddities) of a claim in the metrics and conditions that were compared."""
    if verification.claim is None or not metrics:
        return ()
    compared_names = {metric.name for metric in metrics}
    compared_names.update(condition.name for condition in verification.conditions)
    return tuple(anomaly for anomaly in verification.claim.anomalies if anomaly.field in compared_names)


def judge_reference(
    verification: Verification, findings: Findings, terms: Terms, rows: Sequence[CitedRow]
) -> VerifyResult:
    """Judge records as `judge` does, but give REFERENCE instead of a verdict on speed.

    A row that is only cited says too little about its run for a verdict.

    Args:
        verification: the records compared with the first of `rows`, in the gate metric only.
        findings: the findings of the rules on this verification.
        terms: the tolerances and levels of the verdict.
        rows: the cited rows with their ratios, the nearest first.
    """
    result = judge(verification, findings, terms)
    (compared,) = verification.metrics
    metric = compared.result
    if result.verdict is Verdict.INVALID or not metric.comparable or metric.ratio is None:
        return result
    if any(explain_missing_evidence(subject) for subject in verification.subjects):
        return result
    doubts = findings.doubts[metric.name].about_runs
    clauses = [f"{_both_sides_text(metric, 'cited row')}: ratio {metric.ratio}"]
    clauses.extend(doubt.message for doubt in doubts)
    reason = "; ".join(clauses)
    return replace(
        result,
        verdict=Verdict.REFERENCE,
        reason=reason,
        metrics=(replace(metric, verdict=Verdict.REFERENCE, reason=reason),),
        findings=(*doubts, *findings.qualifiers),
        cited=tuple(rows),
    )


def explain_missing_evidence(subject: Subject) -> str | None:
    """Return why the numbers of a record cannot be checked, with what to do about it; None if it has evidence."""
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
    """Return a metric whose numbers cannot be checked as INCONCLUSIVE, unless it has no verdict on speed anyway."""
    if metric.verdict in (None, Verdict.INVALID, Verdict.NOT_COMPARABLE):
        return metric
    return replace(metric, verdict=Verdict.INCONCLUSIVE, reason=f"no evidence; {metric.reason}")


def _explain_missing_gate(verification: Verification, metrics: Sequence[MetricResult]) -> str:
    """Return why there is no verdict on speed, and which other metrics can be compared."""
    kind = verification.against.kind
    clauses = [f"the {kind} publishes no {verification.case.gate}, so there is no verdict on speed"]
    comparable = [metric.name for metric in metrics if metric.comparable]
    if comparable:
        clauses.append(f"comparable here: {', '.join(comparable)}")
    for metric in metrics:
        if not metric.comparable:
            clauses.append(f"{metric.name} cannot be compared: {metric.reason}")
    return "; ".join(clauses)


def _judge_metric(compared: Compared, verification: Verification, findings: Findings, terms: Terms) -> _JudgedMetric:
    """Return a metric with its verdict; doubts that concern the verdict make it INCONCLUSIVE."""
    metric = compared.result
    if not compared.runs:
        return _JudgedMetric(metric)
    if not metric.comparable:
        if is_speed(compared.spec):
            metric = replace(metric, verdict=Verdict.NOT_COMPARABLE)
        return _JudgedMetric(metric)
    metric = _judge_comparable(compared, verification, terms)
    found = findings.doubts[metric.name]
    doubts: list[Finding] = []
    clauses = [metric.reason]
    if metric.verdict in _FAST_ENOUGH:
        doubts.extend(found.about_runs)
        clauses.extend(doubt.message for doubt in found.about_runs)
    if metric.verdict in _BASELINE_FAST_ENOUGH:
        doubts.extend(found.about_baseline)
        clauses.extend(f"the baseline: {doubt.message}" for doubt in found.about_baseline)
    if not doubts:
        return _JudgedMetric(metric)
    inconclusive = replace(metric, verdict=Verdict.INCONCLUSIVE, reason="; ".join(clauses))
    return _JudgedMetric(inconclusive, tuple(doubts))


def _judge_comparable(compared: Compared, verification: Verification, terms: Terms) -> MetricResult:
    """Return a comparable metric with its verdict, and the numbers behind it; without one if it is not a speed."""
    metric = compared.result
    text = _both_sides_text(metric, verification.against.kind)
    if not is_speed(compared.spec):
        text = f"{text}: {metric.name} is not a speed, so the limits {LOW:.2f} to {HIGH:.2f} do not fit it"
        return replace(metric, reason=text)
    if metric.ratio is None:
        text = f"{text}: no ratio, a value is not positive or the model not published"
        return replace(metric, verdict=Verdict.INCONCLUSIVE, reason=text)
    if compared.baseline:
        return _judge_against_baseline(metric.ratio, compared, verification, terms)
    return _judge_against_claim(metric.ratio, compared, verification, terms)


def _judge_against_claim(ratio: Ratio, compared: Compared, verification: Verification, terms: Terms) -> MetricResult:
    """Return a metric of a claim with the verdict on its ratio, by the limits of a reproduction."""
    spec = compared.spec
    metric = compared.result
    against = verification.against
    text = f"{_both_sides_text(metric, against.kind)}: ratio {ratio}, allowed {LOW:.2f} to {HIGH:.2f}"
    if metric.held_by != list_candidates(spec, against)[0]:
        text = f"{text}; {metric.held_by} itself is held, the record has no {spec.held_by}"
    speed = _classify_against_claim(ratio, compared, verification, terms)
    if speed.reason is not None:
        text = f"{text}; {speed.reason}"
    return replace(metric, verdict=speed.verdict, reason=text)


def _classify_against_claim(
    ratio: Ratio, compared: Compared, verification: Verification, terms: Terms
) -> _SpeedVerdict:
    """Return the verdict on a ratio to a claim, and why it is inconclusive."""
    verdict = classify(ratio)
    if verdict is not Verdict.INCONCLUSIVE:
        strict = compared.strict
        if strict is None or classify(strict) is verdict:
            return _SpeedVerdict(verdict)
        reason = f"as it is looked at more than once, it has to hold at {terms.level:.2%}, where it is {strict}"
        return _SpeedVerdict(Verdict.INCONCLUSIVE, reason)
    if ratio.ci95 is None:
        missing = _explain_missing_interval(verification.subjects, compared.runs)
        return _SpeedVerdict(verdict, missing or "a value is not positive, so there is no interval")
    more = _count_deciding_runs(ratio, compared, terms, in_new_sessions=False)
    if more is not None:
        return _SpeedVerdict(verdict, f"the interval crosses a limit; {_advise(more)}")
    more = _count_deciding_runs(ratio, compared, terms, in_new_sessions=True)
    return _SpeedVerdict(verdict, f"the interval crosses a limit; {_advise(more, ', each in another session,')}")


def _count_deciding_runs(ratio: Ratio, compared: Compared, terms: Terms, *, in_new_sessions: bool) -> int | None:
    """Return how many more runs would decide an inconclusive ratio to a claim; None if too many would be needed.

    `in_new_sessions`: whether each of them is in a session of its own, or all in the present one.
    """

    def is_decided(low: float, high: float) -> bool:
        """Whether an interval around the ratio, relative to it, gives a verdict."""
        interval = (ratio.value * low, ratio.value * high)
        return classify(Ratio(ratio.value, interval)) is not Verdict.INCONCLUSIVE

    return count_further_runs(
        is_decided,
        list_values(compared.runs),
        compute_half_widths(compared.runs),
        terms.prior(compared.runs[0].name),
        session=compared.session,
        in_new_sessions=in_new_sessions,
    )


def _judge_against_baseline(
    ratio: Ratio, compared: Compared, verification: Verification, terms: Terms
) -> MetricResult:
    """Return a metric of a baseline with the verdict on its ratio; the ratio has no interval if a side has none."""
    metric = compared.result
    text = _both_sides_text(metric, verification.against.kind)
    missing = _explain_missing_interval(verification.subjects, compared.runs)
    if missing is None:
        missing = _explain_missing_interval(verification.baseline, compared.baseline)
        if missing is not None:
            missing = f"the baseline: {missing}"
    if missing is not None:
        ratio = Ratio(ratio.value)
        reason = f"{text}: ratio {ratio}, {missing}"
        return replace(metric, ratio=ratio, verdict=Verdict.INCONCLUSIVE, reason=reason)
    assert ratio.ci95 is not None  # the ratio of two sides always has an interval
    outcome = classify_sides(ratio.ci95, terms.within)
    decided_by = _DECIDED_BY[outcome]
    if outcome is SideOutcome.INCONCLUSIVE:
        decided_by = f"{decided_by}; {_advise_for_both_sides(compared, terms)}"
    limits = f"{1 - terms.within:g} to {1 + terms.within:g} counts as the same"
    reason = f"{text}: ratio {ratio}, {limits}; {decided_by}"
    return replace(metric, ratio=ratio, verdict=Verdict[outcome.name], reason=reason)


def _advise_for_both_sides(compared: Compared, terms: Terms) -> str:
    """Return how many more runs or sessions on each side would decide, and whether runs in one session may."""
    prior = terms.prior(compared.runs[0].name)
    further = count_further_on_each_side(compared.sides, within=terms.within, prior=prior)
    if further is None:
        advice = _advise(None, " on each side")
    else:
        advice = _advise(further.more, " on each side", further.unit)
    share_all_sessions = all(session.measured and session.baseline for session in compared.sides)
    if not share_all_sessions and (further is None or further.unit == "session"):
        advice = f"{advice}; runs of both sides in one session may"
    return advice


def _explain_missing_interval(subjects: Sequence[Subject], runs: Sequence[Metric]) -> str | None:
    """Return why the runs of one side give no interval; None if at least half of them have one of their own.

    `runs` has the metric of each of the subjects.
    """
    places = find_without_interval(runs)
    if 2 * len(places) <= len(runs):
        return None
    reason = runs[places[0]].ci_reason
    if reason is None:
        reason = f"its record has none, and {RUNS_FOR_STUDENT} runs would give one between them"
    if len(runs) == 1:
        return f"one value, no interval: {reason}"
    record_id = subjects[places[0]].record.record_id
    return f"{len(places)} of {len(runs)} runs have no interval ({record_id}: {reason})"


def _advise(more: int | None, where: str = "", unit: str = "run") -> str:
    """Return that `more` runs or sessions would decide, as a clause; None is more than can be advised."""
    if more is None:
        return f"{MOST_RUNS} runs{where} would probably not decide it"
    if more > 1:
        unit = f"{unit}s"
    return f"about {more} more {unit}{where} would decide"


def _both_sides_text(metric: MetricResult, kind: str) -> str:
    """Return both values of a metric, as in `p_core 1510 samples/s [1490, 1530] (2 runs), claim 1600`."""
    measured = metric.measured or Estimate(0.0, 0)
    return f"{metric.held_by} {_estimate_text(measured, metric.unit)}, {kind} {_estimate_text(metric.expected)}"


def _estimate_text(estimate: Estimate, unit: str = "") -> str:
    """Return an estimate as text with its number of runs: a single run says least about how runs differ."""
    if estimate.runs == 0:
        return estimate.text()
    if estimate.runs == 1:
        return f"{estimate.text(unit)} (one run)"
    return f"{estimate.text(unit)} ({estimate.runs} runs)"
