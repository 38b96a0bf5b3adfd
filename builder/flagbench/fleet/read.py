"""Reads the runs of a fleet from a store: of each node, case and settings the newest record, and the one before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import groupby

from flagbench.accept.from_records import first_judged, latest_credible_time
from flagbench.errors import FlagbenchError
from flagbench.fleet.hosts import match_hosts
from flagbench.fleet.judge import FleetRuns
from flagbench.fleet.node_run import node_run
from flagbench.fleet.own_checks import check_node
from flagbench.manifests.model import Catalog
from flagbench.records.store import ReadRecord, Store, StoredRecord
from flagbench.system.clock import parse_utc, utc_now
from flagbench.verdict.recompute import recompute
from flagbench_core.exit_codes import ExitCode

EXPECTED_DAYS = 28
"""Without a list of nodes, those are expected that have a record of so many days before `--since` or of a later time.

Names that are seen once, such as those of pods, are not missed for longer than that.
"""
_DAY = len("2026-01-31")
"""The characters of a time that are its day: more is not known of a damaged record."""


def read_fleet(
    store: Store, catalog: Catalog, *, case: str | None = None, since: str | None = None, hosts: Sequence[str] = ()
) -> FleetRuns:
    """Read the runs of a fleet.

    Args:
        store: where the records of the nodes are.
        catalog: the cases, stacks and claims.
        case: the only case whose records are read; None: all.
        since: the time from which records are judged, UTC; None: `first_judged`, some days before the newest record.
        hosts: the names of the nodes that should have answered; empty: those seen in the last EXPECTED_DAYS.

    Raises FlagbenchError (DATA) if the store has no records since then, and no list of nodes is given.
    """
    if store.missing:
        raise FlagbenchError(
            f"there is no folder {store.url}", remedy="name another store with --store", code=ExitCode.DATA
        )
    fleet = FleetRuns(store=store.url, since=since or "")
    chosen = _choose_records(store.list_records(case), catalog, fleet)
    if not hosts:
        _require_records(fleet, case)
    names = match_hosts(hosts, fleet.last_run_at)
    fleet.last_run_at = {names.get(host, host): time for host, time in fleet.last_run_at.items()}
    fleet.expected = hosts or _hosts_seen_lately(fleet.last_run_at, fleet.since)
    _add_runs(fleet, store.read_all(sorted(chosen, key=_host_in_record)), catalog, names)
    return fleet


def _require_records(fleet: FleetRuns, case: str | None) -> None:
    """Raise FlagbenchError (DATA) if a store has no records that are judged."""
    if not fleet.last_run_at:
        of_case = ""
        if case is not None:
            of_case = f" of {case}"
        raise FlagbenchError(
            f"there are no records{of_case} to compare in {fleet.store}",
            remedy="run `flagbench accept --store URL` or a job with --store on each node, or name another store",
            code=ExitCode.DATA,
        )
    newest = max(fleet.last_run_at.values())
    if newest < fleet.since:
        raise FlagbenchError(
            f"no record in {fleet.store} is of {fleet.since} or later; the newest is of {newest}",
            remedy="give an earlier --since, or leave it out",
            code=ExitCode.DATA,
        )


def _choose_records(entries: Iterable[StoredRecord], catalog: Catalog, fleet: FleetRuns) -> list[StoredRecord]:
    """Choose the records of single nodes to read, by their summaries; `entries` has the newest first.

    Of each node, case and settings: the newest of those that are judged, and the newest before them. The fleet gets
    what the listing alone says: the last run of each node, the records that cannot be judged, and a missing `since`.
    """
    chosen: list[StoredRecord] = []
    latest = latest_credible_time()
    judged: set[tuple[str | None, ...]] = set()
    earlier: set[tuple[str | None, ...]] = set()
    for entry in entries:
        problem = _find_problem(entry, catalog, latest)
        if problem is not None and entry.created_at[:_DAY] >= fleet.since[:_DAY]:
            fleet.notes.append(f"{entry.location}: {problem}")
        summary = entry.summary
        if summary is None or not summary.host or summary.created_at > latest:
            continue
        if summary.nodes != 1:  # it only names the first of them
            continue
        fleet.since = fleet.since or first_judged(summary.created_at)
        fleet.last_run_at.setdefault(summary.host, summary.created_at)
        if problem is not None:
            continue
        settings = (summary.host, entry.case, entry.stack, summary.history_digest)
        if summary.created_at >= fleet.since:
            is_chosen = settings not in judged
            judged.add(settings)
        else:
            is_chosen = settings in judged and settings not in earlier
            earlier.add(settings)
        if is_chosen:
            chosen.append(entry)
    fleet.since = fleet.since or first_judged(utc_now())  # no node has a record
    return chosen


def _find_problem(entry: StoredRecord, catalog: Catalog, latest: str) -> str | None:
    """Why a record cannot be judged, according to the listing; None if it can. `latest` is `latest_credible_time`."""
    if entry.summary is None:
        return entry.error
    if not entry.summary.host:
        return "it does not name its node"
    if entry.summary.created_at > latest:
        return f"it is dated in the future, {entry.summary.created_at}"
    if entry.case not in catalog.cases:
        return f"this flagbench does not know the case '{entry.case}'"
    return None


def _hosts_seen_lately(last_run_at: Mapping[str, str], since: str) -> list[str]:
    """The names of the nodes with a record that is at most EXPECTED_DAYS older than those that are judged."""
    hosts = []
    for host, time in sorted(last_run_at.items()):
        if parse_utc(since) - parse_utc(time) <= timedelta(days=EXPECTED_DAYS):
            hosts.append(host)
    return hosts


def _add_runs(
    fleet: FleetRuns,
    read: Iterable[tuple[StoredRecord, ReadRecord | FlagbenchError]],
    catalog: Catalog,
    names: Mapping[str, str],
) -> None:
    """Add the runs of each node, and its own checks, to a fleet.

    Args:
        read: the records, those of a node one after another: the records of 512 nodes together take 0.4 GB of memory.
        names: the name of each expected node by the name in its records.
    """
    for recorded_host, of_host in groupby(read, key=lambda pair: _host_in_record(pair[0])):
        host = names.get(recorded_host, recorded_host)
        judged = []
        for entry, content in of_host:
            if isinstance(content, FlagbenchError):
                fleet.notes.append(f"{entry.location}: {content.message}")
                continue
            subject = recompute(content.record, catalog.cases[entry.case])
            run = node_run(subject, host)
            if run.created_at < fleet.since:
                fleet.earlier.append(run)
                continue
            fleet.runs.append(run)
            judged.append(subject)
        fleet.own_checks[host] = check_node(host, judged, catalog)


def _host_in_record(entry: StoredRecord) -> str:
    """The name of the node as the record has it."""
    assert entry.summary is not None  # other entries were not chosen
    assert entry.summary.host is not None
    return entry.summary.host
