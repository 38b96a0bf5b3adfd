"""The verdict: is a record valid, is it comparable, and is it fast enough; in that order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter

from msgspec.structs import replace

from flagbench.errors import FlagbenchError
from flagbench.manifests.model import Case, Claim
from flagbench.records.digest import unseeded_digest
from flagbench.records.model import Record
from flagbench.terminal import visible
from flagbench.verdict import sanity
from flagbench.verdict.conditions import (
    DEVICE,
    SEED,
    ConditionResult,
    alike,
    case_conditions,
    claim_conditions,
    compare_conditions,
    gate_conditions,
    gate_spec,
    known_conditions,
    qualifiers,
    shared_conditions,
    shown,
)
from flagbench.verdict.disturbances import disturbances, outside_of_steps
from flagbench.verdict.doubts import with_doubts
from flagbench.verdict.interval import Estimate, common, estimate
from flagbench.verdict.judge import Sample, Terms
from flagbench.verdict.metric import STANDARD, Expected, candidates, compare_metric
from flagbench.verdict.recompute import Checked
from flagbench.verdict.result import Against, MetricResult, Verdict, VerifyResult
from flagbench.verdict.samples import check_distinct, check_one_machine
from flagbench.verdict.validity import examine, no_evidence
from flagbench_core.exit_codes import ExitCode


def verify_claim(
    records: Sequence[Record], claim: Claim, case: Case, *, chosen: bool = False, terms: Terms = STANDARD
) -> VerifyResult:
    """Compare the records of one or more runs with a claim.

    Args:
        records: runs of the claim's case on one machine, alike in their software and in all that the gate depends on.
        chosen: whether the claim was chosen by `choose_claim` and not named by the user.
        terms: the level of the intervals, and what is known of the spread between runs.

    Raises:
        FlagbenchError: the records are of another case, not alike, of different machines, or two are of one run.
    """
    if claim.case != case.name:
        raise FlagbenchError(
            f"the claim {claim.id} is of the case {claim.case}, and the record is of {case.name}",
            remedy=f"name a claim of {case.name}; `flagbench list claims` shows them",
        )
    _check_alike(records, case)
    published = claim_conditions(case, claim.conditions)
    conditions = compare_conditions(published, shared_conditions([r.conditions for r in records]), published)
    specs = {spec.name: spec for spec in case.metrics}
    expected = [Expected(specs[m.name], Estimate(m.value, runs=0), m.unit, m.scope) for m in claim.metrics]
    result = _verdict(records, case, Against("claim", claim.id, chosen), conditions, expected, terms, claim=claim)
    compared = {m.name for m in result.metrics} | published.keys()
    return replace(result, anomalies=tuple(a for a in claim.anomalies if result.metrics and a.field in compared))


def verify_baseline(
    records: Sequence[Record],
    baseline: Record | Sequence[Record],
    case: Case,
    *,
    any_seed: bool = False,
    terms: Terms = STANDARD,
) -> VerifyResult:
    """Compare the records of one or more runs with those of others, of the same configuration.

    Every condition and the configuration digest must be equal; software gives a qualifier only. The two sides may be
    of different machines.

    Args:
        any_seed: whether runs differ in their seeds on purpose, as those of a series do: then the seed counts only
            for metrics that depend on it by the case's manifest.
        terms: as for `verify_claim`, and the tolerance of SAME.

    Raises:
        FlagbenchError: as `verify_claim`, or the baseline itself is invalid or among the records.
    """
    baseline = [baseline] if isinstance(baseline, Record) else baseline
    _check_alike(records, case)
    _check_alike(baseline, case)
    ids = [record.record_id for record in baseline]
    if itself := next((record_id for record_id in ids if record_id in [r.record_id for r in records]), None):
        raise FlagbenchError(
            f"the record {itself} is its own baseline", remedy="compare it with the record of another run"
        )
    against = Against("baseline", ", ".join(ids))
    checked = [examine(record, case) for record in baseline]
    baseline = [found.record for found in checked]
    if wrong := _invalid(checked, case, against):
        raise FlagbenchError(
            f"the baseline cannot be used: {visible(wrong)}",
            remedy="give the record of a run that ended well as the baseline",
            code=ExitCode.DATA,
        )
    check_distinct([*records, *baseline])
    digest = unseeded_digest if any_seed else attrgetter("config_digest")
    here, there = (
        shared_conditions([{**known_conditions(r), "config_digest": digest(r)} for r in side])
        for side in (records, baseline)
    )
    conditions = compare_conditions(dict.fromkeys((*case_conditions(case), *here, *there)), here, there)
    # A metric that the case does not know has no better direction, so it cannot be judged.
    known = ((case.metric(m.name), common(baseline, m.name)) for m in baseline[0].metrics)
    expected = [
        Expected(
            spec,
            estimate(found, terms.prior(spec.name), terms.level),
            found[0].unit,
            found[0].scope,
            Sample(tuple(baseline), tuple(found)),
        )
        for spec, found in known
        if spec and found
    ]
    free = (SEED,) if any_seed else ()
    return _verdict(records, case, against, conditions, expected, terms, baseline=baseline, free=free)


def choose_claim(record: Record, case: Case, claims: Iterable[Claim]) -> Claim:
    """The claim of the record's case with the fewest conditions that differ; the first of equals.

    A row of another device that does not publish the gate comes last: it would give no verdict on speed.

    Raises:
        FlagbenchError: the case has no claim.
    """
    own = [c for c in claims if c.case == record.case]
    if not own:
        raise FlagbenchError(
            f"there is no claim of the case {record.case}",
            remedy="compare the record with another one: `flagbench verify RECORD --baseline RECORD`",
        )

    def distance(claim: Claim) -> tuple[bool, int]:
        expected = claim_conditions(case, claim.conditions)
        differing = [c.name for c in compare_conditions(expected, record.conditions, expected) if c.forbids]
        return claim.metric(case.gate) is None and DEVICE in differing, len(differing)

    return min(own, key=distance)


def _verdict(
    records: Sequence[Record],
    case: Case,
    against: Against,
    conditions: tuple[ConditionResult, ...],
    expected: Sequence[Expected],
    terms: Terms,
    baseline: Sequence[Record] = (),
    free: Collection[str] = (),
    claim: Claim | None = None,
) -> VerifyResult:
    """The verdict of the whole: that of the gate metric, unless a record is invalid or has no evidence.

    `baseline`: the valid records of the other side, if it is one. `free`: conditions that count only for metrics that
    depend on them by the case's manifest.
    """
    metrics: tuple[MetricResult, ...] = ()
    checked = [examine(record, case) for record in records]
    records = [found.record for found in checked]
    if invalid := _invalid(checked, case, against):
        verdict, reason = Verdict.INVALID, invalid
    else:
        metrics = tuple(
            compare_metric(
                records,
                case,
                against,
                [c for c in conditions if c.name not in free or c.name in metric.spec.depends_on],
                metric,
                terms,
            )
            for metric in expected
        )
        metrics = tuple(with_doubts(metric, records, case, claim, conditions, baseline) for metric in metrics)
        gate = next((m for m in metrics if m.name == case.gate), None)
        if gate is None:
            verdict, reason = Verdict.NOT_COMPARABLE, _without_gate(case, against, metrics)
        else:
            # Without a verdict, not every record has the gate metric, as far as this version can compute it.
            verdict, reason = gate.verdict or Verdict.INCONCLUSIVE, gate.reason
    judged = verdict not in (Verdict.INVALID, Verdict.NOT_COMPARABLE)
    without = next(filter(None, map(no_evidence, (*records, *baseline))), None)
    if without is not None and verdict is not Verdict.INVALID:
        either = f"; it is not comparable either: {reason}" if verdict is Verdict.NOT_COMPARABLE else ""
        verdict, reason = Verdict.INCONCLUSIVE, without + either
        metrics = tuple(map(_unproven, metrics))
    disturbed = [*disturbances(records), *(f"baseline: {what}" for what in disturbances(baseline))]
    disturbed += outside_of_steps(records, baseline)
    return VerifyResult(
        verdict=verdict,
        qualifiers=(*qualifiers(conditions, case), *disturbed) if judged else (),
        reason=reason,
        gate=case.gate,
        against=against,
        records=tuple(r.record_id for r in records),
        metrics=metrics,
        conditions=conditions,
        not_compared=tuple(dict.fromkeys(name for one in checked for name in one.not_compared)),
    )


def _unproven(metric: MetricResult) -> MetricResult:
    """A comparison of numbers that cannot be checked, which gives no verdict."""
    if metric.verdict in (None, Verdict.INVALID, Verdict.NOT_COMPARABLE):
        return metric
    return replace(metric, verdict=Verdict.INCONCLUSIVE, reason=f"no evidence; {metric.reason}")


def _without_gate(case: Case, against: Against, metrics: Sequence[MetricResult]) -> str:
    """Why there is no verdict on speed, and what else can be held."""
    comparable = ", ".join(m.name for m in metrics if m.comparable)
    # Nothing differs of a metric that was not measured, so its own reason says more than a condition would.
    others = [f"{m.name} cannot be compared: {m.reason}" for m in metrics if not m.comparable]
    found = [f"comparable here: {comparable}"] if comparable else []
    lacking = f"the {against.kind} publishes no {case.gate}, so there is no verdict on speed"
    return "; ".join([lacking, *found, *others])


def _invalid(checked: Sequence[Checked], case: Case, against: Against) -> str | None:
    """What is wrong with the first record that is invalid, or None."""
    names = candidates(gate_spec(case), against)
    for one in checked:
        if found := [*one.problems, *sanity.gate_problems(one.record, names)]:
            return f"record {one.record.record_id}: {'; '.join(found)}"
    return None


def _check_alike(records: Sequence[Record], case: Case) -> None:
    """Reject records of different work or software: their spread would not be that of one repeated run."""
    first = records[0]
    names = (*gate_conditions(case), *case.software_conditions)
    for record in records:
        _check_case(record, case)
        for name in names:
            mine, other = first.conditions.get(name), record.conditions.get(name)
            if not alike(mine, other):
                raise FlagbenchError(
                    f"the records are not of the same conditions: {name} is {visible(shown(mine))} in "
                    f"{first.record_id} and {visible(shown(other))} in {record.record_id}",
                    remedy="verify them one at a time, or give only runs of the same conditions",
                )
    check_distinct(records)
    check_one_machine(records)


def _check_case(record: Record, case: Case) -> None:
    if record.case != case.name:
        raise FlagbenchError(
            f"the record {record.record_id} is of the case {record.case}, not of {case.name}",
            remedy=f"give a record of {case.name}, or name a claim or baseline of {record.case}",
        )
