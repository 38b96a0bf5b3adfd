"""Reads the runs of a fleet from a store: of each node, case and settings the newest record, and an earlier one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from typing import NamedTuple

from flagbench.errors import FlagbenchError
from flagbench.fleet.hosts import match_hosts
from flagbench.fleet.judge import FleetRuns
from flagbench.fleet.node_run import NodeRun, node_run
from flagbench.fleet.own_checks import OwnChecks, check_node
from flagbench.fleet.result import Action, Finding, Source
from flagbench.manifests.model import Catalog
from flagbench.records.model import Record
from flagbench.records.read import read_record
from flagbench.records.store import Store, StoredRecord
from flagbench.system.clock import TIME_FORMAT, parse_utc
from flagbench.verdict.series import CLOCK_SKEW
from flagbench_core.exit_codes import ExitCode

JUDGED_DAYS = 7
"""How many days before the newest record the records begin that are judged, unless `--since` says otherwise."""


@dataclass
class _Entries:
    """The listed records that are to be read, and what became known about the others."""

    since: str = ""
    """The time from which records are judged."""
    judged: list[StoredRecord] = field(default_factory=list)
    earlier: list[StoredRecord] = field(default_factory=list)
    last_run_at: dict[str, str] = field(default_factory=dict)
    """The time of the newest record of each node, by the name in the record."""
    hosts_of_larger_runs: set[str] = field(default_factory=set)
    """The names in the records of runs on several nodes: such a record only names the first of them."""
    notes: list[str] = field(default_factory=list)


def read_fleet(
    store: Store, catalog: Catalog, *, now: datetime, case: str | None, since: str | None, expected: Sequence[str]
) -> FleetRuns:
    """Read the runs of a fleet.

    Args:
        store: where the records of the nodes are.
        catalog: the cases, stacks and claims.
        now: the time; records of a later time are left out.
        case: the only case whose records are read; None: all.
        since: the time from which records are judged, UTC; None: JUDGED_DAYS before the newest record.
        expected: the names of the nodes that should have answered.

    Raises FlagbenchError (DATA) if the store has no records since then, and no nodes are expected.
    """
    entries = _choose_entries(store.list_records(case), now, since)
    if not entries.judged and not expected:
        if entries.last_run_at:
            newest = max(entries.last_run_at.values())
            raise FlagbenchError(
                f"no record in {store.url} is of {entries.since} or later; the newest is of {newest}",
                remedy="give an earlier --since, or leave it out",
                code=ExitCode.DATA,
            )
        raise FlagbenchError(
            f"there are no records to compare in {store.url}",
            remedy="run `flagbench accept --store URL` or a job with --store on each node, or name another store",
            code=ExitCode.DATA,
        )
    names = match_hosts(expected, entries.last_run_at)
    runs: list[NodeRun] = []
    own_checks: dict[str, OwnChecks] = {}
    # Node by node: the records of 512 nodes together take 0.4 GB of memory, and more with more devices.
    judged = _read_records(store, entries.judged, catalog, names, entries)
    for host, of_host in groupby(judged, key=_host):
        records = [read.record for read in of_host]
        runs += [node_run(record, catalog.cases[record.case], host) for record in records]
        own_checks[host] = _check_newest(host, records, catalog)
    earlier = []
    for read in _read_records(store, entries.earlier, catalog, names, entries):
        earlier.append(node_run(read.record, catalog.cases[read.record.case], read.host))
    known = {run.host for run in (*runs, *earlier)}
    last_run_at = {}
    for recorded_host, time in entries.last_run_at.items():
        host = names.get(recorded_host, recorded_host)
        if host in known or recorded_host not in entries.hosts_of_larger_runs:
            last_run_at[host] = time
    return FleetRuns(
        runs=runs,
        earlier=earlier,
        own_checks=own_checks,
        expected=expected,
        last_run_at=last_run_at,
        store=store.url,
        since=entries.since,
        notes=entries.notes,
    )


def _choose_entries(listed: Iterable[StoredRecord], now: datetime, since: str | None) -> _Entries:
    """Choose the records to read by their summaries: the newest since a time, and the newest before it.

    The listing has the newest record first.
    """
    entries = _Entries()
    latest = (now + CLOCK_SKEW).strftime(TIME_FORMAT)
    chosen: set[tuple[str | bool | None, ...]] = set()
    for entry in listed:
        summary = entry.summary
        if summary is None:
            entries.notes.append(f"{entry.location}: {entry.error}")
            continue
        if not summary.host:
            entries.notes.append(f"{entry.location}: it does not name its node")
            continue
        if summary.created_at > latest:
            entries.notes.append(f"{entry.location}: it is dated in the future, {summary.created_at}")
            continue
        if not entries.since:
            entries.since = since or _days_before(summary.created_at)
        entries.last_run_at.setdefault(summary.host, summary.created_at)
        period = entries.earlier
        if summary.created_at >= entries.since:
            period = entries.judged
        group = (summary.host, entry.case, entry.stack, summary.history_digest, period is entries.judged)
        if group not in chosen:
            chosen.add(group)
            period.append(entry)
    return entries


def _days_before(time: str) -> str:
    """The time JUDGED_DAYS before another, UTC."""
    earlier = parse_utc(time) - timedelta(days=JUDGED_DAYS)
    return earlier.strftime(TIME_FORMAT)


class _ReadRecord(NamedTuple):
    """A record of a run on one node."""

    host: str
    """The name of the node, as it is in the list of expected nodes."""
    record: Record


def _host(read: _ReadRecord) -> str:
    return read.host


def _read_records(
    store: Store, listed: Sequence[StoredRecord], catalog: Catalog, names: Mapping[str, str], entries: _Entries
) -> Iterator[_ReadRecord]:
    """Yield the records of runs on one node, node by node. Adds to `entries` why others cannot be judged.

    `names` has the name of each expected node by the name in its records.
    """
    for entry, content in store.read_all(sorted(listed, key=_host_in_record)):
        try:
            if isinstance(content, FlagbenchError):
                raise content
            record = read_record(content)
        except FlagbenchError as error:
            entries.notes.append(f"{entry.location}: {error.message}")
            continue
        host = _host_in_record(entry)
        if record.case not in catalog.cases:
            entries.notes.append(f"{entry.location}: this flagbench does not know the case '{record.case}'")
        elif record.system.nodes > 1:
            entries.hosts_of_larger_runs.add(host)
        else:
            yield _ReadRecord(names.get(host, host), record)


def _host_in_record(entry: StoredRecord) -> str:
    """The name of the node as the record has it."""
    assert entry.summary is not None  # other entries were not chosen
    assert entry.summary.host is not None
    return entry.summary.host


def _check_newest(host: str, records: Sequence[Record], catalog: Catalog) -> OwnChecks:
    """The checks of one node from the newest record of each of its cases."""
    newest: dict[str, Record] = {}
    for record in sorted(records, key=lambda record: record.created_at):
        newest[f"{record.case}:{record.stack}"] = record
    try:
        return check_node(host, [*newest.values()], catalog)
    except FlagbenchError as error:
        return OwnChecks((Finding(host, Action.LOOK, Source.OWN_CHECKS, error.message),))
