"""How much the speed of a configuration differs between runs, from the earlier runs in a store.

Two runs of the same configuration never have exactly the same speed. `verify` needs the spread between runs to judge
one run; earlier runs in the user's store give a better number than the default. It is called the prior of a metric.
Runs are grouped by machine and by session: runs that followed each other closely (`verdict.samples`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from flagbench.history.verdicts import with_verdicts
from flagbench.manifests.load import load_catalog_without_claims
from flagbench.records.digest import history_digest, machine_digest
from flagbench.records.index import Summary, summary_of
from flagbench.records.model import Record
from flagbench.records.named import is_path
from flagbench.records.store import Store, StoredRecord, open_store
from flagbench.verdict.samples import group_into_sessions, start_time
from flagbench.verdict.stats.between import DEFAULT, Prior, history_prior

MOST_EARLIER_RUNS = 50
"""Most earlier runs that are used; the newest are."""
_RATES_OF_STEPS = ("p_core", "p_infer_core", "tokens_per_second", "output_tokens_per_second")
"""The beginnings of the names of rates that are computed from the times of many steps."""


def named_priors(
    names: Sequence[str], records: Sequence[Record], compared: Sequence[Record], store_url: str | None
) -> dict[str, Prior]:
    """Return `store_priors` for the store that the records come from; empty if all `names` are those of files."""
    if not records or all(map(is_path, names)):
        return {}
    return store_priors(open_store(store_url), records, compared)


def store_priors(store: Store, records: Sequence[Record], compared: Sequence[Record]) -> dict[str, Prior]:
    """Return the prior of each metric; metrics whose prior is the default are left out.

    Earlier runs are those of the same case, stack and configuration (`history_digest`) whose records pass the checks
    of `verify`; records without evidence do not count. Runs of other machines count for the spread within sessions,
    and not for that between them.

    Args:
        records: the runs that are verified, all of one configuration.
        compared: the records that are verified or compared with, which do not count as earlier runs.
    """
    record = records[0]
    if record.config_digest is None:
        return {}
    earlier = islice(earlier_runs(store, record, compared), MOST_EARLIER_RUNS)
    runs_by_machine: dict[str | None, list[Summary]] = {}
    for entry in with_verdicts(store, earlier):
        if entry.summary is not None and entry.summary.sound:
            runs_by_machine.setdefault(entry.summary.machine_digest, []).append(entry.summary)
    sessions_by_machine = {machine: _divide_into_sessions(runs) for machine, runs in runs_by_machine.items()}
    sessions_of_this_machine = sessions_by_machine.get(machine_digest(record) or "", [])
    all_sessions = list(chain.from_iterable(sessions_by_machine.values()))
    priors = {}
    for metric in record.metrics:
        all_values = _values_by_session(all_sessions, metric.name)
        values_of_this_machine = _values_by_session(sessions_of_this_machine, metric.name)
        prior = history_prior(all_values, values_of_this_machine)
        if prior != DEFAULT:
            priors[metric.name] = prior
    return priors


def _divide_into_sessions(runs: Sequence[Summary]) -> list[list[Summary]]:
    """Return the runs of one machine in sessions."""
    start_times = [start_time(run.created_at, run.duration or 0.0) for run in runs]
    runs_by_session = []
    for indices in group_into_sessions(start_times):
        runs_by_session.append([runs[index] for index in indices])
    return runs_by_session


def _values_by_session(runs_by_session: Sequence[Sequence[Summary]], name: str) -> list[list[float]]:
    """Return the value of a metric in each run that measured it, in sessions; zero is no measurement."""
    values_by_session = []
    for runs in runs_by_session:
        values_by_session.append([run.metrics[name] for run in runs if run.metrics.get(name, 0.0) > 0])
    return values_by_session


def earlier_runs(store: Store, record: Record, compared: Sequence[Record]) -> Iterator[StoredRecord]:
    """Yield other runs of the record's configuration (`history_digest`) that ended well, the newest first.

    A copy of a run is left out, and so are copies of the runs in `compared`.
    """
    digest = history_digest(record)
    known_identities: set[object] = set()
    for compared_record in compared:
        known_identities |= _identities(summary_of(compared_record))
    for entry in store.list_records(record.case, *_names_of_stack(record.stack)):
        summary = entry.summary
        if summary is None or summary.state != "ok" or summary.history_digest != digest:
            continue
        identities = _identities(summary)
        if known_identities.isdisjoint(identities):
            yield entry
        known_identities |= identities


def _names_of_stack(name: str) -> tuple[str, ...]:
    """Return all names that a stack has had: a record has the one of its time."""
    for stack in load_catalog_without_claims().stacks.values():
        if name in stack.names:
            return stack.names
    return (name,)


def _identities(summary: Summary) -> set[object]:
    """Return what identifies a run: its id, and each rate of its steps to the last digit.

    Times are measured in microseconds, so two runs never have an equal rate: records that have one are copies.
    """
    identities: set[object] = {summary.run_id}
    for name, rate in summary.metrics.items():
        if name.startswith(_RATES_OF_STEPS):
            identities.add((name, rate))
    return identities
