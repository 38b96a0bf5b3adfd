"""Every rule by which a record is INVALID, or a verdict on it in doubt or qualified: one table.

A rule is here for what a broken tool, a wrong set-up or a sick machine does to an honest user, and says it. A record
that was forged consistently passes them all (docs/threat-model.md). The table in the docs is generated from RULES,
and tests name a rule by its id.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from flagbench.verdict.result import Finding, Findings, Verification
from flagbench.verdict.rules import comparison, record
from flagbench.verdict.rules.table import RULES, Consequence, Needs, Rule
from flagbench.verdict.subject import Subject

__all__ = ["RULES", "Consequence", "Needs", "Rule", "apply", "comparison", "invalid", "record"]

MOST = 5
"""Messages of a rule: a record may have any number of devices and steps, and a reader needs a few."""


def apply(verification: Verification) -> Findings:
    """What every rule finds: in each record of both sides, in each metric that was compared, and in the whole."""
    doubts = {}
    for compared in verification.metrics:
        if compared.result.comparable:
            sample = _found(Needs.SAMPLE, verification.subjects, compared, verification)
            claimed = _found(Needs.CLAIM, compared, verification) if verification.claim is not None else ()
            there = _found(Needs.SAMPLE, verification.baseline, compared, verification)
            doubts[compared.result.name] = ((*sample, *claimed), there)
    return Findings(
        invalid=tuple(each for subject in verification.subjects for each in invalid(subject)),
        invalid_baseline=tuple(each for subject in verification.baseline for each in invalid(subject)),
        doubts=doubts,
        qualifiers=_found(Needs.BOTH, verification),
    )


def invalid(subject: Subject) -> tuple[Finding, ...]:
    """Why a record is INVALID: nothing where it is sound."""
    found = _found(Needs.RECORD, subject)
    if subject.record.status.state == "ok":  # an interrupted run's record has parts of each
        found += _found(Needs.RUN, subject)
        if subject.section is not None:
            found += _found(Needs.EVIDENCE, subject, subject.section)
    return tuple(Finding(each.rule, each.message, subject.record.record_id) for each in found)


def _found(needs: Needs, *given: Any) -> tuple[Finding, ...]:
    return tuple(
        Finding(each.id, message)
        for each in RULES.values()
        if each.needs is needs
        for message in islice(each.find(*given), MOST)
    )
