"""A record's way to its verdict: recompute, conditions, interval, rules, judge; each once, in this order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

from flagbench.console.terminal import visible
from flagbench.errors import FlagbenchError
from flagbench.manifests.model import Case
from flagbench.manifests.rows import Claim, PublishedRow
from flagbench.records.digest import unseeded_digest
from flagbench.records.model import Record
from flagbench.verdict import rules
from flagbench.verdict.conditions import (
    DEVICE_MODEL,
    SEED,
    alike,
    case_conditions,
    claim_conditions,
    compare_conditions,
    gate_conditions,
    gate_spec,
    known_conditions,
    shared_conditions,
    shown,
)
from flagbench.verdict.interval import (
    STANDARD,
    Expected,
    Terms,
    compare_metric,
    expected_of_baseline,
    expected_of_claim,
)
from flagbench.verdict.judge import judge, judge_reference
from flagbench.verdict.recompute import recompute
from flagbench.verdict.result import Against, CitedRow, Estimate, Verification, VerifyResult
from flagbench.verdict.samples import check_distinct, check_one_machine
from flagbench_core.evidence.section import MEASURE
from flagbench_core.exit_codes import ExitCode


def verify_claim(
    records: Sequence[Record], claim: Claim, case: Case, *, chosen: bool = False, terms: Terms = STANDARD
) -> VerifyResult:
    """Compare the records of one or more runs with a claim.

    Args:
        records: runs of the claim's case on one machine, alike in their software and in all that the gate depends on.
        chosen: whether the claim was chosen by `choose_claim` and not named by the user.
        terms: what is known of the spread between runs.

    Raises:
        FlagbenchError: the records are of another case, not alike, of different machines, or two are of one run.
    """
    if claim.case != case.name:
        raise FlagbenchError(
            f"the claim {claim.id} is of the case {claim.case}, and the record is of {case.name}",
            remedy=f"name a claim of {case.name}; `flagbench list claims` shows them",
        )
    case = case.held_to(claim.metrics)
    _check_alike(records, case)
    against = Against("claim", claim.id, chosen)
    subjects = [recompute(record, case) for record in records]
    published = claim_conditions(case, claim.conditions)
    conditions = compare_conditions(published, shared_conditions([r.conditions for r in records]), published)
    held = [subject.record for subject in subjects]
    metrics = tuple(
        compare_metric(held, case, against, conditions, each, terms) for each in expected_of_claim(claim, case)
    )
    verification = Verification(
        case=case, against=against, subjects=subjects, conditions=conditions, metrics=metrics, claim=claim
    )
    return judge(verification, rules.apply(verification), terms)


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
    case = case.held_to(baseline[0].metrics)
    _check_alike(records, case)
    _check_alike(baseline, case)
    ids = [record.record_id for record in baseline]
    if itself := next((record_id for record_id in ids if record_id in [r.record_id for r in records]), None):
        raise FlagbenchError(
            f"the record {itself} is its own baseline",
            remedy="compare it with another run; `last` names the whole series where the newest record is of one",
        )
    against = Against("baseline", ", ".join(ids))
    subjects, others = ([recompute(record, case) for record in side] for side in (records, baseline))
    digest = unseeded_digest if any_seed else attrgetter("config_digest")
    here, there = (
        shared_conditions([{**known_conditions(r), "config_digest": digest(r)} for r in side])
        for side in (records, baseline)
    )
    conditions = compare_conditions(dict.fromkeys((*case_conditions(case), *here, *there)), here, there)
    held, expected = ([subject.record for subject in side] for side in (subjects, others))
    unseeded = [condition for condition in conditions if condition.name != SEED or not any_seed]
    metrics = tuple(
        compare_metric(held, case, against, conditions if SEED in each.spec.depends_on else unseeded, each, terms)
        for each in expected_of_baseline(expected, case, terms)
    )
    verification = Verification(
        case=case,
        against=against,
        subjects=subjects,
        conditions=conditions,
        metrics=metrics,
        baseline=others,
    )
    findings = rules.apply(verification)
    if wrong := findings.invalid_baseline:
        what = "; ".join(each.message for each in wrong if each.record == wrong[0].record)
        raise FlagbenchError(
            f"the baseline cannot be used: record {wrong[0].record}: {visible(what)}",
            remedy="give the record of a run that ended well as the baseline",
            code=ExitCode.DATA,
        )
    check_distinct([*records, *baseline])
    return judge(verification, findings, terms)


def verify_reference(
    records: Sequence[Record], rows: Sequence[PublishedRow], case: Case, *, terms: Terms = STANDARD
) -> VerifyResult:
    """Put the records of one or more runs beside published rows that are only cited.

    Args:
        records: as for `verify_claim`.
        rows: each with the metric that decides, of the same work on the same device; the nearest first.
        terms: as for `verify_claim`.

    Raises:
        FlagbenchError: as `verify_claim`.
    """
    _check_alike(records, case)
    against = Against("cited row", rows[0].id, chosen=True)
    subjects = [recompute(record, case) for record in records]
    held = [subject.record for subject in subjects]
    spec = gate_spec(case)
    compared, cited = [], []
    for row in rows:
        published = row.metric(spec.name)
        assert published is not None, row.id
        expected = Expected(spec, Estimate(published.value, runs=0), published.unit, spec.scope)
        metric = compare_metric(held, case, against, (), expected, terms)
        compared.append(metric)
        cited.append(CitedRow(row.id, row.citation, float(published.value), published.unit, metric.result.ratio))
    verification = Verification(case=case, against=against, subjects=subjects, conditions=(), metrics=(compared[0],))
    return judge_reference(verification, rules.apply(verification), terms, cited)


def claims_for(record: Record, case: Case, claims: Iterable[Claim]) -> list[Claim]:
    """The claims that a record of the case can be held against."""
    own = [c for c in claims if c.case == record.case]
    if case.kind != MEASURE:
        return own
    # What another device reaches, or another product, says nothing of this one.
    here = {name: record.conditions.get(name) for name in (DEVICE_MODEL, "shape")}
    return [c for c in own if all(c.conditions.get(name, value) == value for name, value in here.items())]


def choose_claim(record: Record, case: Case, claims: Iterable[Claim]) -> Claim | None:
    """The claim for the record with the fewest conditions that differ, the first of equals; None without a claim.

    A row of another device that does not publish the gate comes last: it would give no verdict on speed.
    """

    def distance(claim: Claim) -> tuple[bool, int]:
        expected = claim_conditions(case, claim.conditions)
        differing = [c.name for c in compare_conditions(expected, record.conditions, expected) if c.forbids]
        return claim.metric(case.held_to(claim.metrics).gate) is None and DEVICE_MODEL in differing, len(differing)

    return min(claims_for(record, case, claims), key=distance, default=None)


def _check_alike(records: Sequence[Record], case: Case) -> None:
    """Reject records of different work or software: their spread would not be that of one repeated run."""
    first = records[0]
    for record in records:
        if record.case != case.name:
            raise FlagbenchError(
                f"the record {record.record_id} is of the case {record.case}, not of {case.name}",
                remedy=f"give a record of {case.name}, or name a claim or baseline of {record.case}",
            )
        for name in (*gate_conditions(case), *case.software_conditions):
            mine, other = first.conditions.get(name), record.conditions.get(name)
            if not alike(mine, other):
                raise FlagbenchError(
                    f"the records are not of the same conditions: {name} is {visible(shown(mine))} in "
                    f"{first.record_id} and {visible(shown(other))} in {record.record_id}",
                    remedy="verify them one at a time, or give only runs of the same conditions",
                )
    check_distinct(records)
    check_one_machine(records)
