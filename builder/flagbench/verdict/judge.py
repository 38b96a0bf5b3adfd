"""The verdict: what was found against the records, whether they are comparable, and whether they are fast enough."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from flagbench.console.terminal import brief
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


def judge(verification: Verification, findings: Findings, terms: Terms) -> VerifyResult:
    """The verdict of the whole: that of the gate metric, unless a record is invalid or has no evidence."""
    case, against = verification.case, verification.against
    subjects = verification.subjects
    metrics: tuple[MetricResult, ...] = ()
    used: list[Finding] = [*findings.invalid]
    ended: EarlyEnd | None = None
    if findings.invalid:
        first = findings.invalid[0].record
        status = next(subject.record.status for subject in subjects if subject.record.record_id == first)
        ended = early_end(status.state, status.exit_code)
        found = "; ".join(each.message for each in findings.invalid if each.record == first)
        verdict, reason = Verdict.INVALID, f"record {first}: {found}"
    else:
        judgements = [_judged(each, verification, findings, terms) for each in verification.metrics]
        metrics = tuple(metric for metric, _ in judgements)
        gate = next((metric for metric in metrics if metric.name == case.gate), None)
        if gate is None:
            verdict, reason = Verdict.NOT_COMPARABLE, _without_gate(verification, metrics)
        else:
            verdict, reason = gate.verdict or Verdict.INCONCLUSIVE, gate.reason
            if gate.verdict is None:  # not every record has the gate metric, as far as this version can compute it
                other = [*differing_conditions(case, against, verification.conditions, gate_spec(case), gate.held_by)]
                verdict = Verdict.NOT_COMPARABLE if other else verdict
                reason = "; ".join([reason, *other])
            used += [each for metric, doubts in judgements if metric is gate for each in doubts]
    judged = verdict not in (Verdict.INVALID, Verdict.NOT_COMPARABLE)
    without = next(filter(None, map(no_evidence, (*subjects, *verification.baseline))), None)
    if without is not None and verdict is not Verdict.INVALID:
        either = f"; it is not comparable either: {reason}" if verdict is Verdict.NOT_COMPARABLE else ""
        verdict, reason = Verdict.INCONCLUSIVE, without + either
        metrics = tuple(map(_unproven, metrics))
    claim = verification.claim
    shown = {metric.name for metric in metrics} | {condition.name for condition in verification.conditions}
    return VerifyResult(
        verdict=verdict,
        qualifiers=tuple(each.message for each in findings.qualifiers) if judged else (),
        reason=reason,
        gate=case.gate,
        against=against,
        records=tuple(subject.record.record_id for subject in subjects),
        metrics=metrics,
        conditions=verification.conditions,
        anomalies=tuple(a for a in claim.anomalies if metrics and a.field in shown) if claim is not None else (),
        not_compared=tuple(dict.fromkeys(name for subject in subjects for name in subject.not_compared)),
        findings=(*used, *(findings.qualifiers if judged else ())),
        ended=ended,
    )


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
    text = f"{metric.held_by} {_with_runs(measured, metric.unit)}, cited row {_with_runs(metric.expected)}"
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


def _unproven(metric: MetricResult) -> MetricResult:
    """A comparison of numbers that cannot be checked, which gives no verdict."""
    if metric.verdict in (None, Verdict.INVALID, Verdict.NOT_COMPARABLE):
        return metric
    return replace(metric, verdict=Verdict.INCONCLUSIVE, reason=f"no evidence; {metric.reason}")


def _without_gate(verification: Verification, metrics: Sequence[MetricResult]) -> str:
    """Why there is no verdict on speed, and what else can be held."""
    comparable = ", ".join(m.name for m in metrics if m.comparable)
    # Nothing differs of a metric that was not measured, so its own reason says more than a condition would.
    others = [f"{m.name} cannot be compared: {m.reason}" for m in metrics if not m.comparable]
    found = [f"comparable here: {comparable}"] if comparable else []
    gate, kind = verification.case.gate, verification.against.kind
    return "; ".join([f"the {kind} publishes no {gate}, so there is no verdict on speed", *found, *others])


def _judged(
    compared: Compared, verification: Verification, findings: Findings, terms: Terms
) -> tuple[MetricResult, tuple[Finding, ...]]:
    """A metric with its verdict, INCONCLUSIVE with the reasons if doubts take that away, and these doubts."""
    result = compared.result
    if not compared.runs:
        return result, ()
    if not result.comparable:
        return replace(result, verdict=Verdict.NOT_COMPARABLE if is_speed(compared.spec) else None), ()
    result = _fast_enough(compared, verification, terms)
    runs, baseline = findings.doubts[result.name]
    mine = runs if result.verdict in _ENOUGH else ()
    others = baseline if result.verdict in _SLOWER else ()
    if not mine and not others:
        return result, ()
    why = [each.message for each in mine] + [f"the baseline: {each.message}" for each in others]
    return replace(result, verdict=Verdict.INCONCLUSIVE, reason="; ".join([result.reason, *why])), (*mine, *others)


def _fast_enough(compared: Compared, verification: Verification, terms: Terms) -> MetricResult:
    """A comparable metric with its verdict, and the numbers behind it."""
    spec, result, against = compared.spec, compared.result, verification.against
    name, measured = result.held_by, result.measured or Estimate(0.0, 0)
    text = f"{name} {_with_runs(measured, result.unit)}, {against.kind} {_with_runs(result.expected)}"
    if not is_speed(spec):
        text = f"{text}: {spec.name} is not a speed, so the limits {LOW:.2f} to {HIGH:.2f} do not fit it"
        return replace(result, reason=text)
    if result.ratio is None:
        text = f"{text}: no ratio, a value is not positive or the model not published"
        return replace(result, verdict=Verdict.INCONCLUSIVE, reason=text)
    records = [subject.record for subject in verification.subjects]
    if compared.baseline:
        others = [subject.record for subject in verification.baseline]
        ratio, verdict, why = _against_baseline(result.ratio, compared, records, others, terms)
        return replace(result, ratio=ratio, verdict=verdict, reason=f"{text}: ratio {ratio}, {why}")
    text = f"{text}: ratio {result.ratio}, allowed {LOW:.2f} to {HIGH:.2f}"
    if name != candidates(spec, against)[0]:
        text = f"{text}; {name} itself is held, the record has no {spec.held_by}"
    verdict, because = _against_claim(result.ratio, compared, records, terms)
    return replace(result, verdict=verdict, reason=f"{text}; {because}" if because else text)


def _against_claim(
    value: Ratio, compared: Compared, records: Sequence[Record], terms: Terms
) -> tuple[Verdict, str | None]:
    """The verdict on a ratio to a claim, and why it is inconclusive."""
    verdict, runs = classify(value), compared.runs
    if verdict is not Verdict.INCONCLUSIVE:
        if compared.strict is None or classify(compared.strict) is verdict:
            return verdict, None
        why = f"as it is looked at more than once, it has to hold at {terms.level:.2%}, where it is {compared.strict}"
        return Verdict.INCONCLUSIVE, why
    if value.ci95 is None:
        return verdict, _unsettled(records, runs) or "a value is not positive, so there is no interval"

    def further(*, apart: bool) -> int | None:
        return further_runs(
            lambda low, high: classify(Ratio(value.value, (value.value * low, value.value * high))) is not verdict,
            rates(runs),
            half_widths(runs),
            terms.prior(runs[0].name),
            session=compared.session,
            apart=apart,
        )

    more = further(apart=False)
    how = _further(more) if more else _further(further(apart=True), ", each in another session,")
    return verdict, f"the interval crosses a limit; {how}"


def _against_baseline(
    ratio: Ratio, compared: Compared, records: Sequence[Record], others: Sequence[Record], terms: Terms
) -> tuple[Ratio, Verdict, str]:
    """The ratio to a baseline, the verdict on it, and why it is inconclusive or what it was decided by."""
    for side, of, runs in (("", records, compared.runs), ("the baseline: ", others, compared.baseline)):
        if why := _unsettled(of, runs):
            return Ratio(ratio.value), Verdict.INCONCLUSIVE, f"{side}{why}"
    assert ratio.ci95 is not None  # that of two sides has one
    outcome = side_outcome(ratio.ci95, terms.within)
    why = _DECIDED_BY[outcome]
    if outcome is SideOutcome.INCONCLUSIVE:
        further = further_each(compared.sides, within=terms.within, prior=terms.prior(compared.runs[0].name))
        if further is None:
            why = f"{why}; {_further(None, ' on each side')}"
        else:
            why = f"{why}; {_further(further.more, ' on each side', further.unit)}"
        apart = not all(session.here and session.there for session in compared.sides)
        if apart and (further is None or further.unit == "session"):
            why = f"{why}; runs of both sides in one session may"
    limits = f"{1 - terms.within:g} to {1 + terms.within:g} counts as the same"
    return ratio, Verdict[outcome.name], f"{limits}; {why}"


def _unsettled(records: Sequence[Record], runs: Sequence[Metric]) -> str | None:
    """Why the windows of the runs give no interval, None if they do."""
    places = without_interval(runs)
    if 2 * len(places) <= len(runs):
        return None
    why = runs[places[0]].ci_reason
    if why is None:
        why = f"its record has none, and {RUNS_FOR_STUDENT} runs would give one between them"
    if len(runs) == 1:
        return f"one value, no interval: {why}"
    return f"{len(places)} of {len(runs)} runs have no interval ({records[places[0]].record_id}: {why})"


def _further(more: int | None, where: str = "", unit: str = "run") -> str:
    if more is None:
        return f"{MOST_RUNS} runs{where} would probably not decide it"
    return f"about {more} more {unit}{'s' if more > 1 else ''}{where} would decide"


def _with_runs(value: Estimate, unit: str = "") -> str:
    """A measured value says how many runs it is of: one run knows least of how runs differ."""
    if not value.runs:
        return value.text()
    return f"{value.text(unit)} ({'one run' if value.runs == 1 else f'{value.runs} runs'})"
