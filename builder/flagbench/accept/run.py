"""The runs of an acceptance, each within the time that is left, and the facts that they add to the certificate."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from flagbench.accept.check import Outcome
from flagbench.accept.facts import facts_before, read_health_after
from flagbench.accept.judge import checks_of
from flagbench.accept.part import Part
from flagbench.accept.plan import AcceptanceClock, AcceptancePlan
from flagbench.accept.priors import prior_to_json
from flagbench.console.output import print_note
from flagbench.errors import FlagbenchError
from flagbench.history.priors import MOST_EARLIER_RUNS, earlier_runs, store_priors
from flagbench.history.verdicts import with_verdicts
from flagbench.manifests.model import Catalog
from flagbench.records.digest import machine_digest
from flagbench.records.model import Record
from flagbench.records.read import read_record
from flagbench.records.store import Store, StoredRecord
from flagbench.runs.keep import Finished, run_and_keep
from flagbench.system.signals import AT_ONCE_SECONDS, Delaying
from flagbench_core.exit_codes import ExitCode

LEAST_SECONDS = 10.0
"""A run is not started with fewer seconds left."""
HISTORY = 5
"""Most earlier runs that a run is compared with; the newest are chosen."""
LEAST_OF_FASTEST = {"cuda": 0.90, "cpu": 0.75}
"""By kind of device, the share of the fastest earlier run below which others are left out: a machine that became
slower would soon be compared with its own slow runs."""
MOST_TIMEOUT = 300.0
"""Most seconds without progress after which a run is ended: a long run would otherwise hang for half of its time."""
LATE_SECONDS = 4.0
"""Seconds after its limit at which a run that did not end by itself is stopped."""


@dataclass
class Accepted:
    """The results of an acceptance: the facts for its certificate, and the records that they name."""

    facts: dict[str, Any]
    """`document.Facts` as JSON."""
    records: dict[str, bytes] = field(default_factory=dict)
    """The content of each record, by id."""
    stored: bool = True
    """Whether the store has the records of all runs."""


def run_plan(
    plan: AcceptancePlan, catalog: Catalog, store: Store, clock: AcceptanceClock, asked: dict[str, Any]
) -> Accepted:
    """Run every part for which there is time, until a check fails.

    A run that fails, a missing image and an interruption are among the facts. Raises FlagbenchError if there is no
    container engine, or if the first run cannot be started.
    """
    accepted = Accepted(facts_before(plan, asked, catalog))
    facts = accepted.facts
    if not _fails(accepted, catalog) and not _can_start(plan, accepted):
        return accepted
    soak_seconds = sum(part.seconds for part in plan.parts if part.soak)
    try:
        with Delaying() as delaying:
            for part in plan.parts:
                if _fails(accepted, catalog):
                    break
                left = clock.left
                if not part.soak:
                    left -= soak_seconds
                stopped = _run_part(part, accepted, store, clock, left)
                if stopped or delaying.signalled is not None:
                    facts["ending"] = "interrupted"
                    break
    except KeyboardInterrupt:
        facts["ending"] = "interrupted"
    return accepted


def _can_start(plan: AcceptancePlan, accepted: Accepted) -> bool:
    """Whether every part can be started. If not, adds all parts to the facts, each with its reason and remedy."""
    parts = []
    can_start = True
    for part in plan.parts:
        facts = _part_facts(part)
        facts["reason"] = "not begun, as another run cannot start"
        try:
            part.target.launcher.check(part.target.request)
        except FlagbenchError as error:
            if error.code is ExitCode.ENGINE:  # nothing is known of the machine
                raise
            facts.update(reason=error.message, remedy=error.remedy or "")
            can_start = False
        parts.append(facts)
    if not can_start:
        accepted.facts["parts"] += parts
    return can_start


def _fails(accepted: Accepted, catalog: Catalog) -> bool:
    """Whether a check of the facts so far fails, so that no further run changes the outcome."""
    records = {name: read_record(content) for name, content in accepted.records.items()}
    checks = checks_of(accepted.facts, records, catalog)
    return any(check.outcome is Outcome.FAIL for check in checks)


def _part_facts(part: Part) -> dict[str, Any]:
    """The facts of a part that was not run yet."""
    return {
        "case": part.case.name,
        "target": part.target.name,
        "why": part.why,
        "record_id": None,
        "state": "not run",
        "reason": None,
        "remedy": "",
        "history": [],
        "priors": {},
    }


def _run_part(part: Part, accepted: Accepted, store: Store, clock: AcceptanceClock, left: float) -> bool:
    """Run one part within `left` seconds, and add its facts. Returns whether it was interrupted from outside."""
    name = part.target.name
    facts = _part_facts(part)
    accepted.facts["parts"].append(facts)
    if left < LEAST_SECONDS:
        facts["reason"] = f"there was no time left: {max(left, 0):.0f} s"
        return False
    print_note(f"flagbench: accept: {name}, about {part.seconds:.0f} s; {left:.0f} s are left")
    target = part.target.with_options(max_minutes=left / 60, timeout=max(5.0, min(left / 2, MOST_TIMEOUT)))
    try:
        with _limit(left + LATE_SECONDS):
            ended = run_and_keep(target, store)
    except FlagbenchError as error:
        if len(accepted.facts["parts"]) == 1:  # such as without a container engine: nothing is known of the machine
            raise
        facts.update(reason=error.message, remedy=error.remedy or "")
        return False
    facts["state"] = "ended without a record"
    read_health_after(accepted.facts)
    accepted.stored = accepted.stored and ended.kept
    stopped = ended.result.signalled and clock.left > -LATE_SECONDS  # later, `_limit` sent the signal
    if not ended.result.record.strip() or ended.code == ExitCode.USAGE:
        return stopped
    record = read_record(ended.result.record)
    facts.update(record_id=record.record_id, state=record.status.state, reason=record.status.reason)
    if record.system.host:  # of the container engine's machine, which may be another one
        accepted.facts["machine"]["host"] = record.system.host
    accepted.records[record.record_id] = ended.result.record
    _add_history(record, facts, accepted, store, ended)
    return stopped


def _add_history(record: Record, facts: dict[str, Any], accepted: Accepted, store: Store, ended: Finished) -> None:
    """Add the earlier runs that a run is compared with, and the spread between them, to its facts."""
    if record.status.state != "ok" or not ended.kept:
        return
    try:
        contents = [store.read(stored) for stored in runs_to_compare(store, record)]
        earlier = [read_record(content) for content in contents]
        priors = store_priors(store, [record], [record, *earlier])
    except FlagbenchError as error:
        print_note(f"flagbench: earlier runs cannot be read: {error.message}")
        return
    records = {}
    for earlier_record, content in zip(earlier, contents, strict=True):
        records[earlier_record.record_id] = content
    facts["history"] = [*records]
    facts["priors"] = {name: prior_to_json(prior) for name, prior in priors.items()}
    accepted.records.update(records)


def runs_to_compare(store: Store, record: Record) -> list[StoredRecord]:
    """The newest HISTORY of the sound earlier runs on this machine that reach LEAST_OF_FASTEST."""
    machine = machine_digest(record)
    least = LEAST_OF_FASTEST["cuda"]
    if record.stack == "cpu":
        least = LEAST_OF_FASTEST["cpu"]
    earlier = (
        stored
        for stored in earlier_runs(store, record, [record])
        if stored.summary and stored.summary.machine == machine
    )
    speeds = []
    for stored in with_verdicts(store, islice(earlier, MOST_EARLIER_RUNS)):
        summary = stored.summary
        if summary is not None and summary.sound:
            speeds.append((stored, summary.metrics.get(summary.gate or "", 0.0)))
    fastest = max((speed for _, speed in speeds), default=0.0)
    return [stored for stored, speed in speeds if speed >= least * fastest][:HISTORY]


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Stop a run that does not end at its own limit: SIGALRM is forwarded to it, twice, and then it is killed."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, seconds, AT_ONCE_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
