"""Computes the checks and the conclusion of an acceptance from its facts and records alone: anybody can repeat it.

Facts are those of a certificate (document.AcceptanceFacts): the machine, the runs and the limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from flagbench.accept.check import AcceptanceCheck, Outcome, did_not_run
from flagbench.accept.checks.devices import peer_checks, uuid_by_rank
from flagbench.accept.checks.health import health_checks
from flagbench.accept.checks.numbers import kind_of_metric
from flagbench.accept.checks.preflight import preflight_checks
from flagbench.accept.checks.run import (
    check_ended,
    check_flops,
    check_heat,
    check_quota,
    check_same_bits,
    describe_disturbance,
    telemetry_checks,
)
from flagbench.accept.checks.soak import soak_checks
from flagbench.accept.checks.speed import JudgedRun, speed_checks
from flagbench.accept.document import NOT_RUN, AcceptanceFacts, Action, RunFacts
from flagbench.accept.limits import limits_of
from flagbench.accept.priors import terms_of
from flagbench.manifests.limits import AcceptanceLimit, Kind
from flagbench.manifests.model import Catalog
from flagbench.records.model import Record
from flagbench.verdict.recompute import recompute
from flagbench.verdict.subject import Subject
from flagbench_core.case_kinds import MEASURE
from flagbench_core.exit_codes import ExitCode

MOST_REASONS = 3
"""The most checks whose reasons the conclusion states."""
SOAK = "soak"
"""The `part` of the checks of a soak."""
HOW_FAST_UNKNOWN = "how fast it should be is not known"
"""What the conclusion adds if a machine was compared only with itself and its own devices."""
_CUT_SHORT = (NOT_RUN, "interrupted")
"""The states of a run for which there was too little time."""
RETRY_FACTOR = 2
"""How many times the minutes another run should have, if a run of this acceptance was too short to decide."""


def checks_of(
    facts: AcceptanceFacts,
    records: Mapping[str, Record],
    catalog: Catalog,
    subjects: Mapping[str, Subject] | None = None,
) -> tuple[AcceptanceCheck, ...]:
    """Every check of an acceptance, in the order in which it was made.

    Args:
        facts: the facts of the certificate.
        records: the records that the certificate names, by id.
        catalog: the cases, claims and limits.
        subjects: the records of its runs, recomputed, by id, from a caller that has them; None: recompute them.
    """
    checks = list(preflight_checks(facts))
    for index, run_facts in enumerate(facts.parts):
        subject = _subject_of(run_facts, records, catalog, subjects or {})
        for check in _run_checks(run_facts, subject, facts, records, catalog):
            if _is_soak(index, facts):
                check = replace(check, part=SOAK)
            checks.append(check)
    checks += health_checks(facts, records)
    if any(check.outcome is Outcome.FAIL for check in checks):  # no further run is begun after a failure
        return tuple(checks)
    for index in range(len(facts.parts), len(facts.planned)):
        name: str = facts.planned[index]
        if _is_soak(index, facts):
            name = SOAK
        checks.append(did_not_run(name, "planned, but not run"))
    if facts.without_case:
        checks.append(did_not_run("case", facts.without_case))
    return tuple(checks)


def _is_soak(index: int, facts: AcceptanceFacts) -> bool:
    """Whether the planned run with this index is the soak: the last run, of the same case as the first."""
    return facts.asked.soak is not None and index == len(facts.planned) - 1


def _subject_of(
    run_facts: RunFacts, records: Mapping[str, Record], catalog: Catalog, subjects: Mapping[str, Subject]
) -> Subject | None:
    """The recomputed record of a run; None if it left none."""
    name = run_facts.record_id or ""
    if name in subjects:
        return subjects[name]
    if name in records:
        return recompute(records[name], catalog.cases[run_facts.case])
    return None


def _run_checks(
    run_facts: RunFacts,
    subject: Subject | None,
    facts: AcceptanceFacts,
    records: Mapping[str, Record],
    catalog: Catalog,
) -> Iterator[AcceptanceCheck]:
    """The checks of one run. A run that did not end well has no checks of its numbers."""
    if subject is None:
        yield did_not_run(run_facts.case, run_facts.reason or "it left no record", run_facts.state, run_facts.remedy)
        return
    record = subject.record
    case = subject.case
    yield check_ended(run_facts, subject)
    if case.kind == MEASURE and (record.results or record.status.state == "ok"):
        yield check_same_bits(record)
    if record.status.state != "ok":
        return
    yield from telemetry_checks(record)
    run = JudgedRun(
        subject=subject,
        catalog=catalog,
        limits=_limits(facts, catalog),
        history=[records[name] for name in run_facts.history if name in records],
        terms=terms_of(run_facts.priors),
        disturbance=_disturbance_and_power_limits(record, facts),
    )
    if case.kind != MEASURE:
        yield from _case_checks(run)
    elif record.laps:
        yield from soak_checks(run.record, run.limits, run.disturbance)
    else:
        yield from _roofs_checks(run, facts)


def _case_checks(run: JudgedRun) -> Iterator[AcceptanceCheck]:
    """The checks of the numbers of a case with a model."""
    yield from speed_checks(run)
    for check in (check_flops(run.subject), check_heat(run.subject)):
        if check is not None:
            yield check


def _roofs_checks(run: JudgedRun, facts: AcceptanceFacts) -> Iterator[AcceptanceCheck]:
    """The checks of the numbers of the roofs, the rates that the devices reach without a model."""
    yield from peer_checks(run.record, run.history, run.limits, run.disturbance)
    check = check_quota(run.record)
    if check is not None and facts.device_kind == "cpu":
        yield check
    yield from speed_checks(run)


def _disturbance_and_power_limits(record: Record, facts: AcceptanceFacts) -> str:
    """Other uses of the machine during a run, and power limits that were lowered before it; empty without either."""
    sentences = []
    disturbed_by = describe_disturbance(record)
    if disturbed_by:
        sentences.append(disturbed_by)
    sentences += facts.machine.capped
    return ", ".join(sentences)


def _limits(facts: AcceptanceFacts, catalog: Catalog) -> tuple[AcceptanceLimit, ...]:
    """The limits that the certificate states. If it states none, as in an earlier version, those of this version."""
    if facts.limits:
        return facts.limits
    names = [device.name for device in facts.machine.devices]
    return limits_of(catalog, names, processor=facts.device_kind == "cpu")


class Conclusion(NamedTuple):
    """What follows from the checks of an acceptance."""

    outcome: Outcome
    reason: str
    """Why it has this outcome."""
    action: Action


def conclude(checks: Sequence[AcceptanceCheck], facts: AcceptanceFacts, records: Mapping[str, Record]) -> Conclusion:
    """Conclude an acceptance from its checks."""
    failed = [check for check in checks if check.outcome is Outcome.FAIL]
    undecided = [check for check in checks if check.outcome is Outcome.INCONCLUSIVE]
    kinds_not_compared = _kinds_not_compared(checks, facts)
    if failed:
        outcome = Outcome.FAIL
        reason = _reasons(failed)
    elif facts.ending == "interrupted":
        outcome = Outcome.INCONCLUSIVE
        reason = "interrupted"
    elif undecided:
        outcome = Outcome.INCONCLUSIVE
        reason = _reasons(undecided)
    elif kinds_not_compared:
        outcome = Outcome.INCONCLUSIVE
        reason = _reason_not_compared(checks, kinds_not_compared)
    else:
        outcome = Outcome.PASS
        reason = _reason_to_pass(checks)
    if facts.off_node:
        reason = f"{reason}; judged off the node, from its records"
    return Conclusion(outcome, reason, _action(outcome, failed, undecided, facts, records))


def _reasons(checks: Sequence[AcceptanceCheck]) -> str:
    """The reasons of the first checks, and how many more checks there are."""
    named = []
    for check in checks[:MOST_REASONS]:
        name = f"{check.part}, {check.name}"
        if check.name == "ran":  # the name of the run alone says enough
            name = check.part
        named.append(f"{name}: {check.reason}")
    text = "; ".join(named)
    if len(checks) > MOST_REASONS:
        text += f"; and {len(checks) - MOST_REASONS} more"
    return text


def _kinds_not_compared(checks: Sequence[AcceptanceCheck], facts: AcceptanceFacts) -> list[Kind]:
    """The kinds of numbers in which a machine has to pass, and that were compared with no reference."""
    needed: list[Kind] = ["product"]
    if facts.device_kind != "cpu":
        needed.append("memory")
    passed = {check.kind for check in checks if check.outcome is Outcome.PASS and check.reference is not None}
    return [kind for kind in needed if kind not in passed]


def _reason_not_compared(checks: Sequence[AcceptanceCheck], kinds: Sequence[Kind]) -> str:
    """`nothing says how fast it should be in product: ...`, with the reasons why numbers could not be compared."""
    reasons = []
    for check in checks:
        if check.outcome is Outcome.NOT_KNOWN and kind_of_metric(check.name) in kinds:
            reasons.append(f"{check.name}: {check.reason}")
    text = "; ".join(reasons[:MOST_REASONS]) or "no row, no earlier run"
    return f"nothing says how fast it should be in {' and '.join(kinds)}: {text}"


def _reason_to_pass(checks: Sequence[AcceptanceCheck]) -> str:
    """The reason of a machine that passes: how many checks passed, and what it was compared with.

    The latter only if no reference says how fast a device of this model should be.
    """
    not_known = sum(check.outcome is Outcome.NOT_KNOWN for check in checks)
    text = f"all {len(checks) - not_known} checks passed"
    if not_known:
        text += f", {not_known} could not be made"
    references = {check.reference for check in checks if check.outcome is Outcome.PASS and check.reference}
    references.discard("link")  # the rate of a link does not tell how fast the device should be
    if references == {"history"}:
        return f"{text}; as before; {HOW_FAST_UNKNOWN}"
    if references == {"peers"}:
        return f"{text}; as the others; {HOW_FAST_UNKNOWN}"
    if references == {"history", "peers"}:
        return f"{text}; as before and as the others; {HOW_FAST_UNKNOWN}"
    return text


def _action(
    outcome: Outcome,
    failed: Sequence[AcceptanceCheck],
    undecided: Sequence[AcceptanceCheck],
    facts: AcceptanceFacts,
    records: Mapping[str, Record],
) -> Action:
    """What to do with the machine: the gravest of `drain`, `fix`, `run again` and `use`.

    A failed check without a remedy is evidence against a device, so the machine is drained.
    """
    if outcome is Outcome.PASS:
        return Action("use")
    against_device = [check for check in failed if not check.remedy]
    if against_device:
        ranks = sorted({rank for check in against_device for rank in check.ranks})
        return Action("drain", tuple(ranks), _uuids(ranks, facts, records))
    remedies = dict.fromkeys(check.remedy for check in (*failed, *undecided) if check.remedy)
    if remedies:
        return Action("fix", remedies=tuple(remedies))
    if facts.off_node:  # records do not say how many minutes they had
        return Action("run again")
    minutes = facts.asked.minutes
    has_unsteady_number = any(check.ratio is not None for check in undecided)
    if has_unsteady_number or _lacked_time(facts, records):
        minutes = RETRY_FACTOR * minutes
    return Action("run again", minutes=minutes)


def _lacked_time(facts: AcceptanceFacts, records: Mapping[str, Record]) -> bool:
    """Whether there was too little time: no case fitted, or a run was not made, was interrupted or reached its limit.

    A run that failed, such as one of which a process was killed, did not fail for lack of time.
    """
    if facts.without_case is not None or len(facts.parts) < len(facts.planned):
        return True
    for run_facts in facts.parts:
        record = records.get(run_facts.record_id or "")
        reached_limit = record is not None and record.status.exit_code == ExitCode.TIMEOUT
        if reached_limit or run_facts.state in _CUT_SHORT:
            return True
    return False


def _uuids(ranks: Sequence[int], facts: AcceptanceFacts, records: Mapping[str, Record]) -> tuple[str, ...]:
    """The UUIDs of the devices of `ranks`, from the records of this acceptance, or else from the list of devices."""
    uuids = {device.index: device.uuid for device in facts.machine.devices}
    for run_facts in facts.parts:
        record = records.get(run_facts.record_id or "")
        if record is not None:
            uuids |= uuid_by_rank(record)
    return tuple(uuids[rank] for rank in ranks if uuids.get(rank))  # a processor has none
