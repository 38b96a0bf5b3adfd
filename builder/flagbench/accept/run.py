"""The runs of an acceptance: in order, each within what is left of the time, and what is known of the machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from flagbench.accept.checks import EARLIER, Outcome, checks_of, plain_prior
from flagbench.accept.plan import AcceptanceClock, AcceptancePlan, Part
from flagbench.console.output import print_note
from flagbench.errors import FlagbenchError
from flagbench.history.priors import MOST_EARLIER_RUNS, earlier_runs, store_priors
from flagbench.history.verdicts import with_verdicts
from flagbench.machine.look import look_at_machine
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
    """Run every part for which there is time, until a check fails. What ends a run, and an interruption, are among
    the facts. Raises FlagbenchError where the image of any part is missing, or the first run cannot be started."""
    found = Accepted(_facts(plan, asked))
    facts = found.facts
    if not _fails(found, catalog):
        for part in plan.parts:
            part.target.launcher.check(part.target.request)
    try:
        with Delaying() as delaying:
            for part in plan.parts:
                if _fails(found, catalog):
                    break
                stopped = _run_part(part, found, store, clock)
                if stopped or delaying.signalled is not None:
                    facts["ending"] = "interrupted"
                    break
    except KeyboardInterrupt:
        facts["ending"] = "interrupted"
    return found


def _fails(found: Accepted, catalog: Catalog) -> bool:
    """Whether a check of what is known so far fails, so that no further run changes the outcome."""
    records = {name: read_record(content) for name, content in found.records.items()}
    checks = checks_of(found.facts, records, catalog)
    return any(check.outcome is Outcome.FAIL for check in checks)


def _facts(plan: AcceptancePlan, asked: dict[str, Any]) -> dict[str, Any]:
    """What is known before anything runs."""
    facts = look_at_machine()
    machine = facts.accelerators
    floor = None
    if plan.parts and plan.parts[0].target.via == "docker":
        floor = plan.stack.device.driver_floor  # what its image needs
    problem = machine.problem
    if problem and machine.remedy:
        problem = f"{problem}; {machine.remedy}"
    return {
        "asked": asked,
        "gpus": plan.gpus,
        "stack": plan.stack.name,
        "device_kind": plan.stack.device_kind,
        "driver_floor": floor,
        "machine": {
            "host": os.uname().nodename,
            "visible": machine.visible,
            "problem": problem,
            "tool": machine.tool.value,
            "lost": machine.lost,
            "devices": [
                {"index": index, "name": each.name, "uuid": each.uuid} for index, each in enumerate(machine.devices)
            ],
            "drivers": facts.drivers,
            "foreign": [*facts.programs],
            "partitions": facts.partitions,
            "capped": facts.power_caps,
        },
        "planned": [part.case.name for part in plan.parts],
        "without_case": plan.without_case,
        "ending": "done",
        "parts": [],
    }


def _run_part(part: Part, found: Accepted, store: Store, clock: AcceptanceClock) -> bool:
    """Run one part, and add its facts. Whether it was interrupted from outside."""
    left = clock.left
    name = part.target.name
    facts: dict[str, Any] = {
        "case": part.case.name,
        "target": name,
        "why": part.why,
        "record_id": None,
        "state": "not run",
        "reason": None,
        "history": [],
        "priors": {},
    }
    found.facts["parts"].append(facts)
    if left < LEAST_SECONDS:
        facts["reason"] = f"there was no time left: {max(left, 0):.0f} s"
        return False
    print_note(f"flagbench: accept: {name}, about {part.seconds:.0f} s; {left:.0f} s are left")
    target = part.target.asked(max_minutes=left / 60, timeout=max(5.0, left / 2))
    try:
        with _limit(left + LATE_SECONDS):
            ended = run_and_keep(target, store)
    except FlagbenchError as error:
        if len(found.facts["parts"]) == 1:  # such as without a container engine: nothing is known of the machine
            raise
        facts["reason"] = f"{error.message}; {error.remedy}"
        return False
    facts["state"] = "ended without a record"
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
    """The newest HISTORY of the sound earlier runs on this machine, without those that are below the limit of the
    fastest: a machine that became slower would soon be held against itself."""
    here, limit = machine_digest(record), EARLIER["cpu" if record.stack == "cpu" else "cuda"]
    earlier = (
        each for each in earlier_runs(store, record, [record]) if each.summary and each.summary.machine == here
    )
    judged = with_verdicts(store, islice(earlier, MOST_EARLIER_RUNS))
    summaries = [(each, each.summary) for each in judged if each.summary and each.summary.sound]
    known = [(each, of.metrics.get(of.gate or "", 0.0)) for each, of in summaries]
    fastest = max((speed for _, speed in known), default=0.0)
    return [each for each, speed in known if speed >= limit * fastest][:HISTORY]


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
