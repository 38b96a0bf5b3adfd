"""The checks that every record passes before it is compared: with a claim, a baseline, another record or a curve."""

from __future__ import annotations

from flagbench.manifests.model import Case
from flagbench.records.model import Record
from flagbench.terminal import brief
from flagbench.verdict import plausible, rechecks, recompute, required, sanity
from flagbench.verdict.subject import Subject, text


def examine(record: Record, case: Case) -> recompute.Checked:
    """The record with its metrics computed again, and everything that makes it invalid, one clause each."""
    checked = recompute.check(record, case)
    found, contradictions, section = checked.record, checked.problems, checked.section
    subject = Subject(found, case)
    problems = [*sanity.problems(found, case), *recompute.repeated_metrics(found), *contradictions]
    if section is not None:
        problems += [*plausible.problems(subject, section), *rechecks.contradictions(subject, section)]
    unknown = required.missing_checks(subject) if subject.made_elsewhere else ()
    names = (*checked.not_compared, *(f"check {name}" for name in unknown), *_uncounted(subject))
    return checked._replace(problems=tuple(problems), not_compared=names)


def _uncounted(subject: Subject) -> tuple[str, ...]:
    """Why no rule on FLOPs is applied, if none is."""
    if subject.case.formula is None:
        return (f"FLOPs: {subject.case.name} counts none",)
    if other := subject.other_formula:
        return (f"FLOPs: counted by {text(other)}",)
    if subject.record.flops is not None and subject.flops_of_unit is None:
        return ("FLOPs: the tokens of a sample or a size of the model are not known",)
    return ()


def no_evidence(record: Record) -> str | None:
    """Why the numbers of a record cannot be checked; None if they can."""
    if record.evidence is not None:
        return None
    remedy = "run the case again with this version of flagbench"
    if record.evidence_reason is not None:
        remedy = brief(record.evidence_reason)
    return (
        f"no evidence: the record {record.record_id} does not contain the step times that its numbers were computed "
        f"from, so they cannot be checked; {remedy}"
    )
