"""Apply the rules by which a record is INVALID, or by which a verdict on it is in doubt or qualified.

Each rule detects something that a broken tool, a wrong set-up or a sick machine does to an honest user. A record that
was forged consistently passes all of them (docs/threat-model.md). The rules stand in one table, RULES: the
documentation's table is generated from it, and tests refer to a rule by its id.

`verify` calls `apply` with everything that was compared; `check_record` checks a record alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from flagbench.verdict.result import Doubts, Finding, Findings, Verification
from flagbench.verdict.rules import comparison, record
from flagbench.verdict.rules.table import RULES, Consequence, Needs, Rule
from flagbench.verdict.subject import Subject

__all__ = ["RULES", "Consequence", "Needs", "Rule", "apply", "check_record", "comparison", "record"]

MOST_MESSAGES = 5
"""The most messages of one rule: a record may have any number of devices and steps, and a reader needs a few."""


def apply(verification: Verification) -> Findings:
    """Return the findings of all rules on each record, each compared metric, and both sides together."""
    return Findings(
        invalid=_check_records(verification.subjects),
        invalid_baseline=_check_records(verification.baseline),
        doubts=_find_doubts(verification),
        qualifiers=_apply_rules(Needs.BOTH, verification),
    )


def _check_records(subjects: Sequence[Subject]) -> tuple[Finding, ...]:
    """Return the findings that make records of one side INVALID."""
    findings: list[Finding] = []
    for subject in subjects:
        findings.extend(check_record(subject))
    return tuple(findings)


def _find_doubts(verification: Verification) -> dict[str, Doubts]:
    """Return the doubts about each comparable metric, by its name."""
    doubts = {}
    for compared in verification.metrics:
        if not compared.result.comparable:
            continue
        about_runs = _apply_rules(Needs.SAMPLE, verification.subjects, compared, verification)
        if verification.claim is not None:
            about_runs += _apply_rules(Needs.CLAIM, compared, verification)
        about_baseline = _apply_rules(Needs.SAMPLE, verification.baseline, compared, verification)
        doubts[compared.result.name] = Doubts(about_runs, about_baseline)
    return doubts


def check_record(subject: Subject) -> tuple[Finding, ...]:
    """Return the findings that make a record INVALID, each with the record's id; empty if the record is sound."""
    findings = _apply_rules(Needs.RECORD, subject)
    # The record of an interrupted run has only parts of its numbers, so the other rules would find too much.
    if subject.record.status.state == "ok":
        findings += _apply_rules(Needs.RUN, subject)
        if subject.evidence is not None:
            findings += _apply_rules(Needs.EVIDENCE, subject, subject.evidence)
    return tuple(Finding(finding.rule, finding.message, subject.record.record_id) for finding in findings)


def _apply_rules(needs: Needs, *arguments: Any) -> tuple[Finding, ...]:
    """Call the rules that look at `needs` with its arguments; at most MOST_MESSAGES findings of each rule."""
    findings = []
    for rule in RULES.values():
        if rule.needs is not needs:
            continue
        for message in islice(rule.find(*arguments), MOST_MESSAGES):
            findings.append(Finding(rule.id, message))
    return tuple(findings)
