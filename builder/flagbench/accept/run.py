"""The runs of an acceptance: in order, each within what is left of the time, and what is known of the machine."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from flagbench.accept.check import Outcome
from flagbench.accept.checks.speed import plain_prior
from flagbench.accept.facts import facts_before, read_health_after
from flagbench.accept.judge import checks_of
from flagbench.accept.part import Part
from flagbench.accept.plan import AcceptanceClock, AcceptancePlan
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
"""With less left, a run is not begun."""
HISTORY = 5
"""Earlier runs that a run is compared with, the newest."""
LEAST_OF_FASTEST = {"cuda": 0.90, "cpu": 0.75}
"""Earlier runs below that share of the fastest are not compared with: a machine that became slower would soon be held
against itself."""
MOST_TIMEOUT = 300.0
"""Seconds without progress after which a run is ended: a long one would otherwise hang for half of its time."""
LATE_SECONDS = 4.0
"""After its limit, a run that did not end by itself is stopped."""


@dataclass
class Accepted:
    """What an acceptance found: facts for its certificate, and the records that they name."""

    facts: dict[str, Any]
    records: dict[str, bytes] = field(default_factory=dict)
    stored: bool = True


def run_plan(
    plan: AcceptancePlan, catalog: Catalog, store: Store, clock: AcceptanceClock, asked: dict[str, Any]
) -> Accepted:
    """Run every part for which there is time, until a check fails.

    What ends a run, a missing image and an interruption are among the facts. Raises FlagbenchError where there is no
    container engine, or the first run cannot be started.
    """
    found = Accepted(facts_before(plan, asked, catalog))
    facts = found.facts
    if not _fails(found, catalog) and not _can_start(plan, found):
        return found
    soak_seconds = sum(part.seconds for part in plan.parts if part.soak)
    try:
        with Delaying() as delaying:
            for part in plan.parts:
                if _fails(found, catalog):
                    break
                left = clock.left if part.soak else clock.left - soak_seconds
                stopped = _run_part(part, found, store, clock, left)
                if stopped or delaying.signalled is not None:
                    facts["ending"] = "interrupted"
                    break
    except KeyboardInterrupt:
        facts["ending"] = "interrupted"
    return found


def _can_start(plan: AcceptancePlan, found: Accepted) -> bool:
    """Whether every part can be started; if not, all parts are among the facts, with what mends each."""
    parts, can_start = [], True
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
        found.facts["parts"] += parts
    return can_start


def _fails(found: Accepted, catalog: Catalog) -> bool:
    """Whether a check of what is known so far fails, so that no further run changes the outcome."""
    records = {name: read_record(content) for name, content in found.records.items()}
    checks = checks_of(found.facts, records, catalog)
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


def _run_part(part: Part, found: Accepted, store: Store, clock: AcceptanceClock, left: float) -> bool:
    """Run one part within so many seconds, and add its facts. Whether it was interrupted from outside."""
    name = part.target.name
    facts = _part_facts(part)
    found.facts["parts"].append(facts)
    if left < LEAST_SECONDS:
        facts["reason"] = f"there was no time left: {max(left, 0):.0f} s"
        return False
    print_note(f"flagbench: accept: {name}, about {part.seconds:.0f} s; {left:.0f} s are left")
    target = part.target.with_options(max_minutes=left / 60, timeout=max(5.0, min(left / 2, MOST_TIMEOUT)))
    try:
        with _limit(left + LATE_SECONDS):
            ended = run_and_keep(target, store)
    except FlagbenchError as error:
        if len(found.facts["parts"]) == 1:  # such as without a container engine: nothing is known of the machine
            raise
        facts.update(reason=error.message, remedy=error.remedy or "")
        return False
    facts["state"] = "ended without a record"
    read_health_after(found.facts)
    found.stored = found.stored and ended.kept
    stopped = ended.result.signalled and clock.left > -LATE_SECONDS  # else by the limit
    if not ended.result.record.strip() or ended.code == ExitCode.USAGE:
        return stopped
    record = read_record(ended.result.record)
    facts.update(record_id=record.record_id, state=record.status.state, reason=record.status.reason)
    if record.system.host:  # of the container engine's machine, which may be another one
        found.facts["machine"]["host"] = record.system.host
    found.records[record.record_id] = ended.result.record
    _compare(record, facts, found, store, ended)
    return stopped


def _compare(record: Record, facts: dict[str, Any], found: Accepted, store: Store, ended: Finished) -> None:
    """Add the earlier runs that a run is compared with, and what is known of the spread between them."""
    if record.status.state != "ok" or not ended.kept:
        return
    try:
        contents = map(store.read, held_against(store, record))
        records = {read_record(content).record_id: content for content in contents}
        priors = store_priors(store, [record], [record, *map(read_record, records.values())])
    except FlagbenchError as error:
        print_note(f"flagbench: earlier runs cannot be read: {error.message}")
        return
    facts.update(history=[*records], priors={name: plain_prior(prior) for name, prior in priors.items()})
    found.records.update(records)


def held_against(store: Store, record: Record) -> list[StoredRecord]:
    """The newest HISTORY of the sound earlier runs on this machine, of those that reach LEAST_OF_FASTEST."""
    machine = machine_digest(record)
    least = LEAST_OF_FASTEST["cpu" if record.stack == "cpu" else "cuda"]
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
    """Stops a run that does not end at its own limit: the signal is forwarded to it, again, and then it is killed."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, seconds, AT_ONCE_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
