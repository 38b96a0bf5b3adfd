"""Judges each node by itself, from its own records: with the checks of an acceptance, in their words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flagbench.accept.check import AcceptanceCheck, Outcome
from flagbench.accept.from_records import facts_of_records
from flagbench.accept.judge import checks_of
from flagbench.errors import FlagbenchError
from flagbench.fleet.result import Action, Finding, Source
from flagbench.manifests.model import Catalog
from flagbench.verdict.subject import Subject

_DISTURBANCES = ("alone", "throttled", "undisturbed", "quota")
"""The checks that do not pass if something slowed the node for a time: then it is not drained for its speed."""


@dataclass(frozen=True)
class OwnChecks:
    """What the records of one node say about it."""

    findings: tuple[Finding, ...] = ()
    speed_findings: tuple[Finding, ...] = ()
    """Those about numbers that are below what other machines reach, which other software may explain."""
    disturbance: str = ""
    """What slowed the node for a time, in words; empty if nothing did."""


def check_node(host: str, subjects: Sequence[Subject], catalog: Catalog) -> OwnChecks:
    """Judge a node by the newest record of each of its cases.

    A slow number of a node that was disturbed is no reason to drain it. Records that cannot be judged are a reason to
    look.

    Args:
        host: the name of the node.
        subjects: its records, recomputed.
        catalog: the cases, stacks and claims.
    """
    newest: dict[str, dict[str, Subject]] = {}
    for subject in sorted(subjects, key=lambda subject: subject.record.created_at):
        newest.setdefault(subject.record.stack, {})[subject.record.case] = subject
    findings: list[Finding] = []
    speed_findings: list[Finding] = []
    disturbances: list[str] = []
    for stack, by_case in sorted(newest.items()):
        try:
            checks = _checks_of_stack(by_case, catalog)
        except FlagbenchError as error:
            findings.append(Finding(host, Action.LOOK, Source.OWN_CHECKS, error.message))
            continue
        disturbance = _describe_disturbance(checks)
        if disturbance:
            disturbances.append(disturbance)
        for check in checks:
            action = _action_of(check)
            if action is None:
                continue
            run = ""
            if check.part in by_case:
                run = f"{check.part}:{stack}"
            finding = Finding(host, action, Source.OWN_CHECKS, _describe(check), run)
            if check.reference is not None:
                finding = without_drain(finding, disturbance)
            if check.reference in (None, "peers"):  # the devices of a node have the same software
                findings.append(finding)
            else:
                speed_findings.append(finding)
    return OwnChecks(tuple(findings), tuple(speed_findings), "; ".join(disturbances))


def without_drain(finding: Finding, excuse: str) -> Finding:
    """Return a finding about the speed of a node with an excuse as a reason to look; without an excuse, unchanged."""
    if finding.action is not Action.DRAIN or not excuse:
        return finding
    return replace(finding, action=Action.LOOK, reason=f"{finding.reason}; not drained for that: {excuse}")


def _checks_of_stack(subjects: Mapping[str, Subject], catalog: Catalog) -> tuple[AcceptanceCheck, ...]:
    """The checks of the runs on one stack, by case. Raises FlagbenchError if they cannot be judged."""
    by_id = {subject.record.record_id: subject for subject in subjects.values()}
    records = {name: subject.record for name, subject in by_id.items()}
    facts = facts_of_records([*records.values()], catalog)
    return checks_of(facts, records, catalog, by_id)


def _describe_disturbance(checks: Sequence[AcceptanceCheck]) -> str:
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
