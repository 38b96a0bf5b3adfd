"""Every rule by which a record is INVALID, or a verdict on it in doubt or qualified: one table.

A rule exists for what a broken tool, a wrong set-up or a sick machine does to an honest user, and says it. A record
that was forged consistently passes them all (docs/threat-model.md). The table in the docs is generated from RULES,
and tests name a rule by its id.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    return Findings(
        invalid=_invalid_records(verification.subjects),
        invalid_baseline=_invalid_records(verification.baseline),
        doubts=_doubts(verification),
        qualifiers=_apply_rules(Needs.BOTH, verification),
    )


def _invalid_records(subjects: Sequence[Subject]) -> tuple[Finding, ...]:
    """Why records of one side are INVALID."""
    findings: list[Finding] = []
    for subject in subjects:
        findings.extend(invalid(subject))
    return tuple(findings)


def _doubts(verification: Verification) -> dict[str, tuple[tuple[Finding, ...], tuple[Finding, ...]]]:
    """By metric that is comparable: the doubts about the runs, and those about the baseline."""
    doubts = {}
    for compared in verification.metrics:
        if not compared.result.comparable:
            continue
        about_runs = _apply_rules(Needs.SAMPLE, verification.subjects, compared, verification)
        if verification.claim is not None:
            about_runs += _apply_rules(Needs.CLAIM, compared, verification)
        about_baseline = _apply_rules(Needs.SAMPLE, verification.baseline, compared, verification)
        doubts[compared.result.name] = (about_runs, about_baseline)
    return doubts


def invalid(subject: Subject) -> tuple[Finding, ...]:
    """Why a record is INVALID; empty where it is sound."""
    findings = _apply_rules(Needs.RECORD, subject)
    if subject.record.status.state == "ok":  # an interrupted run's record has parts of each
        findings += _apply_rules(Needs.RUN, subject)
        if subject.section is not None:
            findings += _apply_rules(Needs.EVIDENCE, subject, subject.section)
    return tuple(Finding(finding.rule, finding.message, subject.record.record_id) for finding in findings)


def _apply_rules(needs: Needs, *arguments: Any) -> tuple[Finding, ...]:
    """What the rules find that look at such arguments, at most MOST messages of each."""
    findings = []
    for rule in RULES.values():
        if rule.needs is not needs:
            continue
        for message in islice(rule.find(*arguments), MOST):
            findings.append(Finding(rule.id, message))
    return tuple(findings)
