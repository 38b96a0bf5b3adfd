"""Judges each node by itself, from its own records: with the checks of an acceptance, in their words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flagbench.accept.check import AcceptanceCheck, Outcome
from flagbench.accept.from_records import facts_of_records
from flagbench.accept.judge import checks_of
from flagbench.fleet.result import Action, Finding, Source
from flagbench.manifests.model import Catalog
from flagbench.records.model import Record
from flagbench.verdict.subject import Subject

_DISTURBANCES = ("alone", "throttled", "undisturbed", "quota")
"""The checks that do not pass if something slowed the node for a time: then it is not drained for its speed."""


@dataclass(frozen=True)
class OwnChecks:
    """What the records of one node say about it."""

    findings: tuple[Finding, ...] = ()
    disturbance: str = ""
    """What slowed the node for a time, in words; empty if nothing did."""


def check_node(host: str, subjects: Sequence[Subject], catalog: Catalog) -> OwnChecks:
    """Judge a node by the newest record of each of its cases, recomputed. `catalog` has the claims, too.

    A slow number of a node that was disturbed is no reason to drain it.

    Raises FlagbenchError (DATA) if this flagbench does not know the stack or a case of a record, or if a record
    states more than a machine can have.
    """
    findings: list[Finding] = []
    disturbances: list[str] = []
    for stack in sorted({subject.record.stack for subject in subjects}):
        of_stack = {}
        for subject in subjects:
            if subject.record.stack == stack:
                of_stack[subject.record.record_id] = subject
        records = {name: subject.record for name, subject in of_stack.items()}
        facts = facts_of_records([*records.values()], catalog)
        checks = checks_of(facts, records, catalog, of_stack)
        disturbance = _disturbance(checks)
        if disturbance:
            disturbances.append(disturbance)
        for check in checks:
            action = _action_of(check)
            if action is None:
                continue
            reason = _describe(check)
            if action is Action.DRAIN and check.reference is not None and disturbance:
                action = Action.LOOK
                reason = f"{reason}; not drained for that: {disturbance}"
            findings.append(Finding(host, action, Source.OWN_CHECKS, reason, run=_run_of(check, [*records.values()])))
    return OwnChecks(tuple(findings), "; ".join(disturbances))


def _disturbance(checks: Sequence[AcceptanceCheck]) -> str:
    """What slowed the node for a time, in words; empty if nothing did."""
    clauses = []
    for check in checks:
        if check.name in _DISTURBANCES and _action_of(check) is not None:
            clauses.append(_describe(check))
    return "; ".join(dict.fromkeys(clauses))


def _action_of(check: AcceptanceCheck) -> Action | None:
    """What a check says to do with the node; None if it says nothing.

    What fails without a remedy is evidence against a device. A number that one node cannot decide by itself is left
    to the comparison with the other nodes.
    """
    if check.outcome is Outcome.FAIL and not check.remedy:
        return Action.DRAIN
    if check.outcome is Outcome.FAIL:
        return Action.LOOK
    if check.outcome is Outcome.INCONCLUSIVE and (check.remedy or check.reference is None):
        return Action.LOOK
    return None


def _describe(check: AcceptanceCheck) -> str:
    """A check that did not pass, as a clause with what was measured and the remedy."""
    text = f"{check.name}: {check.reason}"
    if check.name == "ran" and check.measured == "ok":
        text = f"its record of {check.part} contradicts itself: {check.reason}"
    elif check.name == "ran":
        text = f"its run of {check.part} ended as {check.measured}: {check.reason}"
    elif check.measured in check.reason:
        pass
    elif check.reference is not None:
        text = f"{text}: {check.measured}, against {check.against}"
    elif check.measured not in ("nothing", "none"):
        text = f"{text} ({check.measured})"
    if check.remedy:
        text = f"{text}; {check.remedy}"
    return text


def _run_of(check: AcceptanceCheck, records: Sequence[Record]) -> str:
    """The case and the stack of a check; empty for a check of the machine."""
    for record in records:
        if record.case == check.part:
            return f"{record.case}:{record.stack}"
    return ""
