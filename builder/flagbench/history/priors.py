"""The spread between earlier runs of a configuration, from a store's index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

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
    names: Sequence[str], records: Sequence[Record], known: Sequence[Record], store_url: str | None
) -> dict[str, Prior]:
    """As `store_priors`, of the store that records were taken from; nothing where all `names` are those of files."""
    if not records or all(map(is_path, names)):
        return {}
    return store_priors(open_store(store_url), records, known)


def store_priors(store: Store, records: Sequence[Record], known: Sequence[Record]) -> dict[str, Prior]:
    """What is known of the spread between runs of each metric; none where the store has no earlier runs.

    Earlier runs are those of the same case, stack and configuration (`history_digest`) whose records pass the checks
    of `verify`; records without evidence do not count. Runs of other machines count for the spread within sessions,
    and not for that between them.

    Args:
        known: the records that are verified or compared with: they are no earlier runs.
    """
    if records[0].config_digest is None:
        return {}
    earlier = islice(earlier_runs(store, records[0], known), MOST_EARLIER_RUNS)
    machines: dict[str | None, list[Summary]] = {}
    for entry in with_verdicts(store, earlier):
        if entry.summary is not None and entry.summary.sound:
            machines.setdefault(entry.summary.machine, []).append(entry.summary)
    of_machine = {machine: _sessions(runs) for machine, runs in machines.items()}
    here = of_machine.get(machine_digest(records[0]) or "", [])
    everywhere = [session for found in of_machine.values() for session in found]
    priors = {
        metric.name: history_prior(*([_values(runs, metric.name) for runs in side] for side in (everywhere, here)))
        for metric in records[0].metrics
    }
    return {name: prior for name, prior in priors.items() if prior != DEFAULT}


def _sessions(runs: Sequence[Summary]) -> list[list[Summary]]:
    """The runs of one machine by session."""
    begun = [began(run.created_at, run.duration or 0.0) for run in runs]
    return [[runs[place] for place in session] for session in sessions(begun)]


def _values(runs: Sequence[Summary], name: str) -> list[float]:
    """A metric of each run that has it."""
    return [value for value in (run.metrics.get(name, 0.0) for run in runs) if value > 0]


def earlier_runs(store: Store, record: Record, known: Sequence[Record]) -> Iterator[StoredRecord]:
    """Other runs of the record's configuration (`history_digest`) that ended well, each once, newest first.

    Times are measured in microseconds: records with an equal rate are copies of a run, whatever their ids.
    """
    digest, summaries = history_digest(record), map(summary_of, known)
    seen: set[object] = {key for summary in summaries for key in _identities(summary)}
    stacks = load_catalog(claims=False).stacks.values()
    names = next((stack.names for stack in stacks if record.stack in stack.names), (record.stack,))
    for entry in store.list(record.case, *names):
        summary = entry.summary
        if summary is None or summary.state != "ok" or summary.history_digest != digest:
            continue
        identities = _identities(summary)
        if seen.isdisjoint(identities):
            yield entry
        seen |= identities


def _identities(summary: Summary) -> set[object]:
    """What a run alone has: its id, and each of the rates of its steps to the last digit."""
    return {summary.run_id, *(item for item in summary.metrics.items() if item[0].startswith(_OF_STEPS))}
