"""The spread between earlier runs of a configuration, from a store's index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from flagbench.history.verdicts import with_verdicts
from flagbench.manifests.load import load_catalog
from flagbench.records.digest import history_digest, machine_digest
from flagbench.records.index import Summary, summary_of
from flagbench.records.model import Record
from flagbench.records.named import is_path
from flagbench.records.store import Store, StoredRecord, open_store
from flagbench.verdict.samples import began, sessions
from flagbench.verdict.stats.between import DEFAULT, Prior, history_prior

MOST_EARLIER_RUNS = 50
"""The newest ones."""
_OF_STEPS = ("p_core", "p_infer_core", "tokens_per_second")
"""Rates that follow from the times of many steps."""


def named_priors(
    names: Sequence[str], records: Sequence[Record], compared: Sequence[Record], store_url: str | None
) -> dict[str, Prior]:
    """As `store_priors`, for the store that the records come from; nothing if all `names` are those of files."""
    if not records or all(map(is_path, names)):
        return {}
    return store_priors(open_store(store_url), records, compared)


def store_priors(store: Store, records: Sequence[Record], compared: Sequence[Record]) -> dict[str, Prior]:
    """The spread of each metric between earlier runs; empty if the store has none.

    Earlier runs are those of the same case, stack and configuration (`history_digest`) whose records pass the checks
    of `verify`; records without evidence do not count. Runs of other machines count for the spread within sessions,
    and not for that between them.

    Args:
        compared: the records that are verified or compared with: they are no earlier runs.
    """
    if records[0].config_digest is None:
        return {}
    earlier = islice(earlier_runs(store, records[0], compared), MOST_EARLIER_RUNS)
    machines: dict[str | None, list[Summary]] = {}
    for entry in with_verdicts(store, earlier):
        if entry.summary is not None and entry.summary.sound:
            machines.setdefault(entry.summary.machine, []).append(entry.summary)
    sessions_by_machine = {machine: _sessions(runs) for machine, runs in machines.items()}
    of_this_machine = sessions_by_machine.get(machine_digest(records[0]) or "", [])
    of_all_machines = [*chain.from_iterable(sessions_by_machine.values())]
    priors = {}
    for metric in records[0].metrics:
        prior = history_prior(_numbers(of_all_machines, metric.name), _numbers(of_this_machine, metric.name))
        if prior != DEFAULT:
            priors[metric.name] = prior
    return priors


def _sessions(runs: Sequence[Summary]) -> list[list[Summary]]:
    """The runs of one machine by session."""
    begun = [began(run.created_at, run.duration or 0.0) for run in runs]
    runs_by_session = []
    for places in sessions(begun):
        runs_by_session.append([runs[place] for place in places])
    return runs_by_session


def _numbers(runs_by_session: Sequence[Sequence[Summary]], name: str) -> list[list[float]]:
    """A metric of each run that has it, by session."""
    numbers_by_session = []
    for runs in runs_by_session:
        numbers_by_session.append([run.metrics[name] for run in runs if run.metrics.get(name, 0.0) > 0])
    return numbers_by_session


def earlier_runs(store: Store, record: Record, compared: Sequence[Record]) -> Iterator[StoredRecord]:
    """Other runs of the record's configuration (`history_digest`) that ended well, each once, newest first.

    Times are measured in microseconds: records with an equal rate are copies of a run, whatever their ids.
    """
    digest = history_digest(record)
    listed: set[object] = set()
    for verified in compared:
        listed |= _identities(summary_of(verified))
    for entry in store.list(record.case, *_names_of_stack(record.stack)):
        summary = entry.summary
        if summary is None or summary.state != "ok" or summary.history_digest != digest:
            continue
        identities = _identities(summary)
        if listed.isdisjoint(identities):
            yield entry
        listed |= identities


def _names_of_stack(name: str) -> tuple[str, ...]:
    """Every name of a stack: records keep the one that it had."""
    for stack in load_catalog(claims=False).stacks.values():
        if name in stack.names:
            return stack.names
    return (name,)


def _identities(summary: Summary) -> set[object]:
    """What identifies a run: its id, and each rate of its steps to the last digit."""
    identities: set[object] = {summary.run_id}
    for name, rate in summary.metrics.items():
        if name.startswith(_OF_STEPS):
            identities.add((name, rate))
    return identities
