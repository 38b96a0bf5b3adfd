"""Verify records against a claim, a baseline or cited rows, and choose the claim for a record.

Each of the three functions takes the same steps, a module each: `recompute` the metrics from the evidence, compare
the `conditions`, compare the metrics and their `interval`, apply the `rules`, and `judge`.

A claim is a published row that a case repeats; a cited row is one that no case repeats; a baseline are own runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flagbench.console.terminal import visible
from flagbench.errors import FlagbenchError
from flagbench.manifests.fields import Scalar
from flagbench.manifests.model import Case
from flagbench.manifests.rows import Claim, PublishedRow
from flagbench.records.digest import unseeded_record_digest
from flagbench.records.model import Record
from flagbench.verdict import rules
from flagbench.verdict.conditions import (
    DEVICE_MODEL,
    SEED,
    ConditionResult,
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
from flagbench.verdict.result import Against, CitedRow, Estimate, Findings, Verification, VerifyResult
from flagbench.verdict.samples import check_distinct, check_one_machine
from flagbench_core.case_kinds import MEASURE
from flagbench_core.exit_codes import ExitCode


def verify_claim(
    records: Sequence[Record], claim: Claim, case: Case, *, chosen: bool = False, terms: Terms = STANDARD
) -> VerifyResult:
    """Compare the records of one or more runs with a claim.

    Args:
        records: runs of the claim's case on one machine, with equal software and equal conditions of the gate (the
            metric that decides).
        claim: the claim.
        case: the case of both.
        chosen: whether the claim was chosen by `choose_claim` and not named by the user.
        terms: the assumed spread between runs, and the level of the verdict.

    Raises:
        FlagbenchError: the records are of another case, of different conditions or machines, or two are of one run.
    """
    if claim.case != case.name:
        raise FlagbenchError(
            f"the claim {claim.id} is of the case {claim.case}, and the record is of {case.name}",
            remedy=f"name a claim of {case.name}; `flagbench list claims` shows them",
        )
    case = case.with_gate_among(claim.metrics)
    _check_alike(records, case)
    against = Against("claim", claim.id, chosen)
    subjects = [recompute(record, case) for record in records]
    published = claim_conditions(case, claim.conditions)
    measured = shared_conditions([record.conditions for record in records])
    conditions = compare_conditions(published, measured, published)
    computed = [subject.record for subject in subjects]
    metrics = []
    for expected in expected_of_claim(claim, case):
        metrics.append(compare_metric(computed, case, against, conditions, expected, terms))
    verification = Verification(
        case=case, against=against, subjects=subjects, conditions=conditions, metrics=tuple(metrics), claim=claim
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
    """Compare the records of one or more runs with those of earlier runs, the baseline, of the same configuration.

    Every condition and the configuration digest must be equal; different software only qualifies the verdict. The two
    sides may be of different machines.

    Args:
        records: as for `verify_claim`.
        baseline: the record or records of the baseline.
        case: the case of both sides.
        any_seed: whether the runs have different seeds on purpose, as those of a series do. Then the seed counts only
            for metrics that depend on it according to the case's manifest.
        terms: as for `verify_claim`, and the tolerance of SAME.

    Raises:
        FlagbenchError: as `verify_claim`, or the baseline itself is invalid or among the records.
    """
    if isinstance(baseline, Record):
        baseline = [baseline]
    case = case.with_gate_among(baseline[0].metrics)
    _check_alike(records, case)
    _check_alike(baseline, case)
    _check_apart(records, baseline)
    against = Against("baseline", ", ".join(record.record_id for record in baseline))
    subjects = [recompute(record, case) for record in records]
    baseline_subjects = [recompute(record, case) for record in baseline]
    conditions = _conditions_of_sides(records, baseline, case, any_seed=any_seed)
    without_seed = tuple(condition for condition in conditions if condition.name != SEED)
    computed = [subject.record for subject in subjects]
    computed_baseline = [subject.record for subject in baseline_subjects]
    metrics = []
    for expected in expected_of_baseline(computed_baseline, case, terms):
        compared_conditions = conditions
        if any_seed and SEED not in expected.spec.depends_on:
            compared_conditions = without_seed
        metrics.append(compare_metric(computed, case, against, compared_conditions, expected, terms))
    verification = Verification(
        case=case,
        against=against,
        subjects=subjects,
        conditions=conditions,
        metrics=tuple(metrics),
        baseline=baseline_subjects,
    )
    findings = rules.apply(verification)
    _check_baseline(findings)
    check_distinct([*records, *baseline])
    return judge(verification, findings, terms)


def _check_apart(records: Sequence[Record], baseline: Sequence[Record]) -> None:
    """Raise FlagbenchError (USAGE) if a record is on both sides."""
    ids = {record.record_id for record in records}
    for record in baseline:
        if record.record_id in ids:
            raise FlagbenchError(
                f"the record {record.record_id} is its own baseline",
                remedy="compare it with another run; `last` names the whole series where the newest record is of one",
            )


def _conditions_of_sides(
    records: Sequence[Record], baseline: Sequence[Record], case: Case, *, any_seed: bool
) -> tuple[ConditionResult, ...]:
    """Compare all conditions of the runs and of a baseline, and the digests of their configurations."""
    measured = shared_conditions([_conditions_and_digest(record, any_seed=any_seed) for record in records])
    expected = shared_conditions([_conditions_and_digest(record, any_seed=any_seed) for record in baseline])
    names = dict.fromkeys((*case_conditions(case), *measured, *expected))
    return compare_conditions(names, measured, expected)


def _conditions_and_digest(record: Record, *, any_seed: bool) -> dict[str, Scalar | None]:
    """Return the conditions of a run, and the digest of its configuration as one more condition."""
    digest = record.config_digest
    if any_seed:
        digest = unseeded_record_digest(record)
    return {**known_conditions(record), "config_digest": digest}


def _check_baseline(findings: Findings) -> None:
    """Raise FlagbenchError (DATA) if a record of the baseline is invalid."""
    if not findings.invalid_baseline:
        return
    record_id = findings.invalid_baseline[0].record
    messages = [finding.message for finding in findings.invalid_baseline if finding.record == record_id]
    raise FlagbenchError(
        f"the baseline cannot be used: record {record_id}: {visible('; '.join(messages))}",
        remedy="give the record of a run that ended well as the baseline",
        code=ExitCode.DATA,
    )


def verify_reference(
    records: Sequence[Record], rows: Sequence[PublishedRow], case: Case, *, terms: Terms = STANDARD
) -> VerifyResult:
    """Compare the records of one or more runs with published rows that are only cited; the verdict is REFERENCE.

    Args:
        records: as for `verify_claim`.
        rows: rows of the same work on the same device that have the gate metric, or one of the metrics that replace
            it, the nearest first.
        case: the case of the records.
        terms: as for `verify_claim`.

    Raises:
        FlagbenchError: as `verify_claim`.
    """
    _check_alike(records, case)
    against = Against("cited row", rows[0].id, chosen=True)
    subjects = [recompute(record, case) for record in records]
    computed = [subject.record for subject in subjects]
    metrics = []
    cited = []
    for row in rows:
        spec = gate_spec(case.with_gate_among(row.metrics))
        published = row.metric(spec.name)
        assert published is not None, row.id
        expected = Expected(spec, Estimate(published.value, runs=0), published.unit, spec.scope)
        metric = compare_metric(computed, case, against, (), expected, terms)
        metrics.append(metric)
        cited.append(CitedRow(row.id, row.citation, float(published.value), published.unit, metric.result.ratio))
    case = case.with_gate_among(rows[0].metrics)
    verification = Verification(case=case, against=against, subjects=subjects, conditions=(), metrics=(metrics[0],))
    return judge_reference(verification, rules.apply(verification), terms, cited)


def select_claims(record: Record, case: Case, claims: Iterable[Claim]) -> list[Claim]:
    """Return the claims that a record of the case can be compared with."""
    suitable = []
    for claim in claims:
        if claim.case != record.case:
            continue
        # A roof is a property of one device and one operation, so another device's row says nothing about it.
        if case.kind == MEASURE and not _has_same_conditions(record, claim, (DEVICE_MODEL, "shape")):
            continue
        suitable.append(claim)
    return suitable


def _has_same_conditions(record: Record, claim: Claim, names: Iterable[str]) -> bool:
    """Whether a record has the values of a claim in those of the named conditions that the claim states."""
    for name in names:
        if name in claim.conditions and claim.conditions[name] != record.conditions.get(name):
            return False
    return True


def choose_claim(record: Record, case: Case, claims: Iterable[Claim]) -> Claim | None:
    """Return the claim with the fewest conditions that differ from the record, the first of equals.

    A row of another device that does not publish the gate comes last: it would give no verdict on speed. None if no
    claim can be compared.
    """

    def measure_distance(claim: Claim) -> tuple[bool, int]:
        """Return whether the claim comes last, and the number of conditions that differ."""
        expected = claim_conditions(case, claim.conditions)
        conditions = compare_conditions(expected, record.conditions, expected)
        differing = [condition.name for condition in conditions if condition.forbids]
        lacks_gate = claim.metric(case.with_gate_among(claim.metrics).gate) is None
        return lacks_gate and DEVICE_MODEL in differing, len(differing)

    return min(select_claims(record, case, claims), key=measure_distance, default=None)


def _check_alike(records: Sequence[Record], case: Case) -> None:
    """Raise FlagbenchError for records of different work, software or machines, and for two records of one run.

    Their spread would not be that of one repeated run.
    """
    first = records[0]
    for record in records:
        if record.case != case.name:
            raise FlagbenchError(
                f"the record {record.record_id} is of the case {record.case}, not of {case.name}",
                remedy=f"give a record of {case.name}, or name a claim or baseline of {record.case}",
            )
        for name in (*gate_conditions(case), *case.software_conditions):
            expected = first.conditions.get(name)
            actual = record.conditions.get(name)
            if not alike(expected, actual):
                raise FlagbenchError(
                    f"the records are not of the same conditions: {name} is {visible(shown(expected))} in "
                    f"{first.record_id} and {visible(shown(actual))} in {record.record_id}",
                    remedy="verify them one at a time, or give only runs of the same conditions",
                )
    check_distinct(records)
    check_one_machine(records)
