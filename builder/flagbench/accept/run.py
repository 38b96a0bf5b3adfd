"""Makes the runs of an acceptance, each within the time that is left, and collects their facts and records."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

from msgspec.structs import replace

from flagbench.accept.check import Outcome
from flagbench.accept.document import NOT_RUN, AcceptanceFacts, Asked, RunFacts
from flagbench.accept.facts import add_health_after, facts_before
from flagbench.accept.judge import checks_of
from flagbench.accept.plan import AcceptanceClock, AcceptancePlan
from flagbench.accept.planned_run import PlannedRun
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
class AcceptanceResults:
    """The results of an acceptance, which its certificate is computed from."""

    facts: AcceptanceFacts
    records: dict[str, bytes] = field(default_factory=dict)
    """The content of each record, by id."""
    stored: bool = True
    """Whether the records of all runs could be stored."""


def run_plan(
    plan: AcceptancePlan, catalog: Catalog, store: Store, clock: AcceptanceClock, asked: Asked
) -> AcceptanceResults:
    """Make every run of the plan for which there is time, until a check fails.

    A run that fails, a missing image and an interruption are among the facts. Raises FlagbenchError if there is no
    container engine, or if the first run cannot be started.
    """
    accepted = AcceptanceResults(facts_before(plan, asked, catalog))
    facts = accepted.facts
    if not _fails(accepted, catalog) and not _can_start(plan, accepted):
        return accepted
    soak_seconds = sum(planned.seconds for planned in plan.runs if planned.soak)
    try:
        with Delaying() as delaying:
            for planned in plan.runs:
                if _fails(accepted, catalog):
                    break
                seconds_left = clock.seconds_left
                if not planned.soak:
                    seconds_left -= soak_seconds
                interrupted = _make_run(planned, accepted, store, clock, seconds_left)
                if interrupted or delaying.signalled is not None:
                    facts.ending = "interrupted"
                    break
    except KeyboardInterrupt:
        facts.ending = "interrupted"
    return accepted


def _can_start(plan: AcceptancePlan, accepted: AcceptanceResults) -> bool:
    """Whether every run can be started. If not, adds all of them to the facts, each with its reason and remedy.

    Raises FlagbenchError if there is no container engine.
    """
    runs = []
    can_start = True
    for planned in plan.runs:
        run_facts = _not_run(planned, "not begun, as another run cannot start")
        try:
            planned.target.launcher.check(planned.target.request)
        except FlagbenchError as error:
            if error.code is ExitCode.ENGINE:  # nothing is known about the machine
                raise
            run_facts.reason = error.message
            run_facts.remedy = error.remedy or ""
            can_start = False
        runs.append(run_facts)
    if not can_start:
        accepted.facts.parts += runs
    return can_start


def _fails(accepted: AcceptanceResults, catalog: Catalog) -> bool:
    """Whether a check of the facts so far fails: then no further run can change the outcome."""
    records = {name: read_record(content) for name, content in accepted.records.items()}
    checks = checks_of(accepted.facts, records, catalog)
    return any(check.outcome is Outcome.FAIL for check in checks)


def _not_run(planned: PlannedRun, reason: str | None = None) -> RunFacts:
    """The facts of a run that was not made, or not yet."""
    return RunFacts(
        case=planned.case.name,
        target=planned.target.name,
        why=planned.why,
        record_id=None,
        state=NOT_RUN,
        reason=reason,
        history=(),
        priors={},
    )


def _make_run(
    planned: PlannedRun, accepted: AcceptanceResults, store: Store, clock: AcceptanceClock, seconds_left: float
) -> bool:
    """Make one run within `seconds_left`, and add its facts and record. Returns whether the user interrupted it.

    Raises FlagbenchError if it is the first run and cannot be made: then nothing is known about the machine.
    """
    name = planned.target.name
    run_facts = _not_run(planned)
    accepted.facts.parts.append(run_facts)
    if seconds_left < LEAST_SECONDS:
        run_facts.reason = f"there was no time left: {max(seconds_left, 0):.0f} s"
        return False
    print_note(f"flagbench: accept: {name}, about {planned.seconds:.0f} s; {seconds_left:.0f} s are left")
    timeout = max(LEAST_TIMEOUT, min(seconds_left * TIMEOUT_SHARE, MOST_TIMEOUT))
    target = planned.target.with_options(max_minutes=seconds_left / 60, timeout=timeout)
    try:
        with _limit(seconds_left + LATE_SECONDS):
            finished = run_and_keep(target, store)
    except FlagbenchError as error:
        if len(accepted.facts.parts) == 1:
            raise
        run_facts.reason = error.message
        run_facts.remedy = error.remedy or ""
        return False
    run_facts.state = "ended without a record"
    add_health_after(accepted.facts)
    accepted.stored = accepted.stored and finished.kept
    # A signal after that time came from `_limit`, not from the user.
    interrupted = finished.result.signalled and clock.seconds_left > -LATE_SECONDS
    has_record = finished.result.record.strip() and finished.code != ExitCode.USAGE
    if has_record:
        _add_record(finished, run_facts, accepted, store)
    return interrupted


def _add_record(finished: Finished, run_facts: RunFacts, accepted: AcceptanceResults, store: Store) -> None:
    """Add the record of a run to the acceptance, and its state and earlier runs to the facts of the run."""
    record = read_record(finished.result.record)
    run_facts.record_id = record.record_id
    run_facts.state = record.status.state
    run_facts.reason = record.status.reason
    if record.system.host:  # the machine of the container engine, which may be another one
        accepted.facts.machine = replace(accepted.facts.machine, host=record.system.host)
    accepted.records[record.record_id] = finished.result.record
    if finished.kept:
        add_history(record, run_facts, accepted, store)


def add_history(record: Record, run_facts: RunFacts, accepted: AcceptanceResults, store: Store) -> None:
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
    run_facts.history = tuple(records)
    run_facts.priors = {name: spread_of(prior) for name, prior in priors.items()}
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
