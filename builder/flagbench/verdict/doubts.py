"""Why a verdict cannot be given, although the numbers of valid records would give it.

Each doubt leaves room for a slower run than the record shows. So a doubt about the runs takes away REPRODUCED, ABOVE,
FASTER and SAME, not BELOW and SLOWER, and one about a baseline SLOWER and SAME, not FASTER.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from flagbench.manifests.model import NOT_PUBLISHED, Case, Claim, Range
from flagbench.records.model import Record
from flagbench.verdict import physics
from flagbench.verdict.conditions import Agreement, ConditionResult, depends_on
from flagbench.verdict.interval import Ratio
from flagbench.verdict.judge import classify
from flagbench.verdict.result import MetricResult, Verdict
from flagbench.verdict.subject import Subject
from flagbench_core.evidence.derive import INFER
from flagbench_core.stats.within import MIN_STEPS

ABOVE_CEILING = 1.02
"""How far a run may exceed the highest throughput of a matrix product measured in it."""
HOST_CLOCK = 1.02
"""How far the host clock may exceed a clock that includes all waits, beyond what the published row does."""
_ENOUGH = (Verdict.REPRODUCED, Verdict.ABOVE, Verdict.FASTER, Verdict.SAME)
"""Verdicts that slower runs would not have got."""
_SLOWER = (Verdict.SLOWER, Verdict.SAME)
"""Verdicts that a slower baseline would not have given."""


def with_doubts(
    metric: MetricResult,
    records: Sequence[Record],
    case: Case,
    claim: Claim | None,
    conditions: Sequence[ConditionResult],
    baseline: Sequence[Record] = (),
) -> MetricResult:
    """A comparison, INCONCLUSIVE with the reasons if its verdict cannot be given.

    Args:
        claim: what the records are compared with; None for a baseline.
        baseline: the records of the other side, if it is one.
    """
    found: list[str] = []
    if metric.verdict in _ENOUGH:
        subjects = [Subject(record, case) for record in records]
        found += _of_sample(subjects, metric, case)
        if claim is not None:
            if metric.name == case.gate:
                for rule in (_host_clock, _loop_clock):
                    found += [clause for subject in subjects for clause in rule(subject, claim, metric.held_by)]
            found += _unpublished(subjects, conditions, metric)
    if metric.verdict in _SLOWER:
        others = [Subject(record, case) for record in baseline]
        found += [f"the baseline: {clause}" for clause in _of_sample(others, metric, case)]
    if not found:
        return metric
    return replace(metric, verdict=Verdict.INCONCLUSIVE, reason="; ".join([metric.reason, *found]))


def _of_sample(subjects: Sequence[Subject], metric: MetricResult, case: Case) -> Iterator[str]:
    """Why the runs of one side may be slower than their records show, whatever they are compared with."""
    for subject in subjects:
        yield from _ceiling(subject)
    if metric.name == case.gate and subjects:
        yield from _few_steps([subject.record for subject in subjects], metric.held_by)


def _ceiling(subject: Subject) -> Iterator[str]:
    flops, speed = subject.record.flops, physics.achieved(subject)
    if flops is None or speed is None:
        return
    if flops.measured_ceiling is None:
        yield f"record {subject.record.record_id}: what a matrix product reaches was not measured in its run"
        return
    ceiling = flops.measured_ceiling.flops
    if speed > ABOVE_CEILING * ceiling:
        yield (
            f"record {subject.record.record_id}: its window has {speed:.4g} FLOP/s per device, "
            f"{speed / ceiling if ceiling else float('inf'):.3f} times what a matrix product had in the same run"
        )


def _few_steps(records: Sequence[Record], name: str) -> Iterator[str]:
    """What happens once in a hundred steps may not have happened in any of several short windows."""
    steps = [metric.n for metric in (record.metric(name) for record in records) if metric is not None and metric.n]
    if len(steps) == len(records) and sum(steps) < MIN_STEPS:
        which = f"its {len(steps)} windows have" if len(steps) > 1 else "its window has"
        yield (
            f"{which} {sum(steps)} steps, and fewer than {MIN_STEPS} in all say too little: {MIN_STEPS - sum(steps)} "
            "more would decide (--steps)"
        )


def _host_clock(subject: Subject, claim: Claim, held_by: str) -> Iterator[str]:
    """The publisher's clock stops before the device has finished, which must not hide more work than it did there."""
    record, gate = subject.record, subject.case.gate
    host = record.metric(held_by)
    if host is None or held_by == gate:
        return
    core, train = claim.metric("p_core"), claim.metric("p_train")
    published = max(1.0, core.value / train.value) if core and train and train.value > 0 else 1.0
    for name in dict.fromkeys((gate, "p_core", "p_train")):
        other = record.metric(name)
        if other is None or other.unit != host.unit or other.value <= 0:
            continue
        scale = subject.world if (other.scope, host.scope) == ("job", "device") else 1
        ratio = host.value / (other.value / scale)
        if ratio > published * HOST_CLOCK:
            yield (
                f"record {record.record_id}: {held_by}, by the host's clock, is {ratio:.3f} times {name}; at most "
                f"{published * HOST_CLOCK:.3f} times is allowed ({published:.3f} published x {HOST_CLOCK}), so the "
                "clock may hide work of the device"
            )


def _loop_clock(subject: Subject, claim: Claim, _: str) -> Iterator[str]:
    """An inference has no p_train that would show work outside of its timed steps: the time of its loop does."""
    record, window = subject.record, subject.record.window
    core, whole = claim.metric("p_infer_core"), claim.metric("p_infer_whole")
    if INFER not in subject.config or window is None or not window.seconds or window.host_seconds is None:
        return
    published = max(1.0, core.value / whole.value) if core and whole and whole.value > 0 else 1.0
    ratio = window.host_seconds / window.seconds
    if ratio > published * HOST_CLOCK:
        yield (
            f"record {record.record_id}: its window took {ratio:.3f} times as long as its steps on the device; at "
            f"most {published * HOST_CLOCK:.3f} times is allowed ({published:.3f} published x {HOST_CLOCK})"
        )


def _unpublished(
    subjects: Sequence[Subject], conditions: Sequence[ConditionResult], metric: MetricResult
) -> Iterator[str]:
    """Conditions of the work that were not published: the verdict must be the same over the range of each."""
    case = subjects[0].case
    spec = case.metric(metric.name)
    needed = set(depends_on(case, spec, metric.held_by)) if spec is not None else set()
    for condition in conditions:
        name = condition.name
        silent = condition.agreement is Agreement.NOT_PUBLISHED
        if not silent or name not in needed or name not in case.work_conditions:
            continue
        if name in case.ranges:
            yield from _over_range(subjects, name, case.ranges[name], metric)
        else:
            yield f"{name} is {NOT_PUBLISHED}, and the speed depends on it"


def _over_range(subjects: Sequence[Subject], name: str, limits: Range, metric: MetricResult) -> Iterator[str]:
    """Whether a verdict changes between the ends of the range of a condition."""
    works = [work for work in map(_sequences, subjects) if work is not None]
    if metric.ratio is None or len(works) < len(subjects):
        yield f"{name} is {NOT_PUBLISHED}, and the record does not say how much work a sample was"
        return
    ends = [_scaled(metric.ratio, by) for by in (min(works) / limits.high, max(works) / limits.low)]
    if {classify(end) for end in ends} != {metric.verdict}:
        yield (
            f"{name} is {NOT_PUBLISHED}: for {limits.low:g} to {limits.high:g} of them (this run has "
            f"{works[0]:.3g}) the ratio lies between {ends[0].value:.3f} and {ends[1].value:.3f}"
        )


def _sequences(subject: Subject) -> float | None:
    """Sequences of a sample, padding included, the mean of a run; None if the record does not say."""
    work, length = subject.record.work, subject.counted("tokens_per_sample")
    if work is None or not work.tokens_executed or not work.samples_executed or length is None:
        return None
    return work.tokens_executed / work.samples_executed / length


def _scaled(ratio: Ratio, by: float) -> Ratio:
    return Ratio(ratio.value * by, None if ratio.ci95 is None else (ratio.ci95[0] * by, ratio.ci95[1] * by))
