"""Makes the runs of an acceptance, each within the time that is left, and collects their facts and records."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

from msgspec.structs import replace

from flagbench.accept.check import Outcome
from flagbench.accept.document import Asked, Facts, RunPart
from flagbench.accept.facts import add_health_after, facts_before
from flagbench.accept.judge import checks_of
from flagbench.accept.part import Part
from flagbench.accept.plan import AcceptanceClock, AcceptancePlan
from flagbench.accept.priors import spread_of
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
"""The fewest seconds that must be left to start a run."""
HISTORY = 5
"""The most earlier runs that a run is compared with; the newest are chosen."""
LEAST_OF_FASTEST = {"cuda": 0.90, "cpu": 0.75}
"""By kind of device, the share of the speed of the fastest earlier run that another earlier run must reach to be
compared with: otherwise a machine that became slower would soon be compared with its own slow runs."""
TIMEOUT_SHARE = 0.5
"""A run ends after this share of its time without progress, so that a hang is seen before the time is over."""
LEAST_TIMEOUT = 5.0
MOST_TIMEOUT = 300.0
"""The bounds, in seconds, of the time without progress: starting takes a few seconds, and a long run would otherwise
hang for half of its time."""
LATE_SECONDS = 4.0
"""The seconds after its limit at which a run that did not end by itself is stopped from outside."""


@dataclass
class Accepted:
    """The results of an acceptance, which its certificate is computed from."""

    facts: Facts
    records: dict[str, bytes] = field(default_factory=dict)
    """The content of each record, by id."""
    stored: bool = True
    """Whether the records of all runs could be stored."""


def run_plan(plan: AcceptancePlan, catalog: Catalog, store: Store, clock: AcceptanceClock, asked: Asked) -> Accepted:
    """Run every part of the plan for which there is time, until a check fails.

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
                seconds_left = clock.seconds_left
                if not part.soak:
                    seconds_left -= soak_seconds
                interrupted = _run_part(part, accepted, store, clock, seconds_left)
                if interrupted or delaying.signalled is not None:
                    facts.ending = "interrupted"
                    break
    except KeyboardInterrupt:
        facts.ending = "interrupted"
    return accepted


def _can_start(plan: AcceptancePlan, accepted: Accepted) -> bool:
    """Whether every part can be started. If not, adds all parts to the facts, each with its reason and remedy.

    Raises FlagbenchError if there is no container engine.
    """
    parts = []
    can_start = True
    for part in plan.parts:
        run = _not_run(part, "not begun, as another run cannot start")
        try:
            part.target.launcher.check(part.target.request)
        except FlagbenchError as error:
            if error.code is ExitCode.ENGINE:  # nothing is known about the machine
                raise
            run.reason = error.message
            run.remedy = error.remedy or ""
            can_start = False
        parts.append(run)
    if not can_start:
        accepted.facts.parts += parts
    return can_start


def _fails(accepted: Accepted, catalog: Catalog) -> bool:
    """Whether a check of the facts so far fails: then no further run can change the outcome."""
    records = {name: read_record(content) for name, content in accepted.records.items()}
    checks = checks_of(accepted.facts, records, catalog)
    return any(check.outcome is Outcome.FAIL for check in checks)


def _not_run(part: Part, reason: str | None = None) -> RunPart:
    """The facts of a part that was not run, or not yet."""
    return RunPart(
        case=part.case.name,
        target=part.target.name,
        why=part.why,
        record_id=None,
        state="not run",
        reason=reason,
        history=(),
        priors={},
    )


def _run_part(part: Part, accepted: Accepted, store: Store, clock: AcceptanceClock, seconds_left: float) -> bool:
    """Run one part within `seconds_left`, and add its facts and record. Returns whether the user interrupted it.

    Raises FlagbenchError if it is the first part and cannot be run: then nothing is known about the machine.
    """
    name = part.target.name
    run = _not_run(part)
    accepted.facts.parts.append(run)
    if seconds_left < LEAST_SECONDS:
        run.reason = f"there was no time left: {max(seconds_left, 0):.0f} s"
        return False
    print_note(f"flagbench: accept: {name}, about {part.seconds:.0f} s; {seconds_left:.0f} s are left")
    timeout = max(LEAST_TIMEOUT, min(seconds_left * TIMEOUT_SHARE, MOST_TIMEOUT))
    target = part.target.with_options(max_minutes=seconds_left / 60, timeout=timeout)
    try:
        with _limit(seconds_left + LATE_SECONDS):
            finished = run_and_keep(target, store)
    except FlagbenchError as error:
        if len(accepted.facts.parts) == 1:
            raise
        run.reason = error.message
        run.remedy = error.remedy or ""
        return False
    run.state = "ended without a record"
    add_health_after(accepted.facts)
    accepted.stored = accepted.stored and finished.kept
    # A signal after that time came from `_limit`, not from the user.
    interrupted = finished.result.signalled and clock.seconds_left > -LATE_SECONDS
    has_record = finished.result.record.strip() and finished.code != ExitCode.USAGE
    if has_record:
        _add_record(finished, run, accepted, store)
    return interrupted


def _add_record(finished: Finished, run: RunPart, accepted: Accepted, store: Store) -> None:
    """Add the record of a run to the acceptance, and its state and earlier runs to the facts of the run."""
    record = read_record(finished.result.record)
    run.record_id = record.record_id
    run.state = record.status.state
    run.reason = record.status.reason
    if record.system.host:  # the machine of the container engine, which may be another one
        accepted.facts.machine = replace(accepted.facts.machine, host=record.system.host)
    accepted.records[record.record_id] = finished.result.record
    if finished.kept:
        add_history(record, run, accepted, store)


def add_history(record: Record, run: RunPart, accepted: Accepted, store: Store) -> None:
    """Add the earlier runs that a run is compared with, and the spread between them, to the facts of the run."""
    if record.status.state != "ok":
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
    run.history = tuple(records)
    run.priors = {name: spread_of(prior) for name, prior in priors.items()}
    accepted.records.update(records)


def runs_to_compare(store: Store, record: Record) -> list[StoredRecord]:
    """The earlier runs that a run is compared with: the newest HISTORY that are sound and reach LEAST_OF_FASTEST.

    They are of the same configuration on the same machine.
    """
    least_share = LEAST_OF_FASTEST["cuda"]
    if record.stack == "cpu":
        least_share = LEAST_OF_FASTEST["cpu"]
    newest = islice(_runs_of_machine(store, record), MOST_EARLIER_RUNS)
    speeds = []
    for stored in with_verdicts(store, newest):
        summary = stored.summary
        if summary is not None and summary.sound:
            speeds.append((stored, summary.metrics.get(summary.gate or "", 0.0)))
    fastest = max((speed for _, speed in speeds), default=0.0)
    return [stored for stored, speed in speeds if speed >= least_share * fastest][:HISTORY]


def _runs_of_machine(store: Store, record: Record) -> Iterator[StoredRecord]:
    """The earlier runs of the configuration of a record on its machine, newest first."""
    machine = machine_digest(record)
    for stored in earlier_runs(store, record, [record]):
        if stored.summary and stored.summary.machine_digest == machine:
            yield stored


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Stop a run that takes more than `seconds`, although it has a limit of its own.

    The alarm signal is forwarded to the run like a user's. The first one asks it to end. A second one, after
    AT_ONCE_SECONDS, gives it as many seconds more until it is killed.
    """
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, seconds, AT_ONCE_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
