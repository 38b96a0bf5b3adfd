"""The spread between earlier runs of a configuration, from a store's index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from flagbench.records.digest import unseeded_digest
from flagbench.records.index import Summary, summary_of
from flagbench.records.model import Record
from flagbench.records.store import Store, StoredRecord
from flagbench.report.results import with_verdicts
from flagbench.verdict.stats.between import DEFAULT, Prior, history_prior

MOST_RUNS = 50
"""The newest ones."""
_OF_STEPS = ("p_core", "p_infer_core", "tokens_per_second")
"""Rates that follow from the times of many steps."""


def store_priors(store: Store, records: Sequence[Record], known: Sequence[Record]) -> dict[str, Prior]:
    """What is known of the spread between runs of each metric; none where the store has no earlier runs.

    Earlier runs are those of the same case, stack and configuration, with any seed, whose records pass the checks of
    `verify`; records without evidence do not count. Where they are of several machines or software versions, their
    spread is larger, never smaller.

    Args:
        known: the records that are verified or compared with: they are no earlier runs.
    """
    if records[0].config_digest is None:
        return {}
    earlier = islice(_earlier(store, records[0], known), MOST_RUNS)
    values: dict[str, list[float]] = {}
    for entry in with_verdicts(store, earlier):
        if entry.summary is None or not entry.summary.sound:
            continue
        for name, value in entry.summary.metrics.items():
            if value > 0:
                values.setdefault(name, []).append(value)
    priors = {name: history_prior([group]) for name, group in values.items()}
    return {name: prior for name, prior in priors.items() if prior != DEFAULT}


def _earlier(store: Store, record: Record, known: Sequence[Record]) -> Iterator[StoredRecord]:
    """Other runs of the record's configuration that ended well, each once, newest first.

    Times are measured in microseconds: records with an equal rate are copies of a run, whatever their ids.
    """
    digest, summaries = unseeded_digest(record), map(summary_of, known)
    seen: set[object] = {key for summary in summaries for key in _identities(summary)}
    for entry in store.list(record.case, record.stack):
        summary = entry.summary
        if summary is None or summary.state != "ok" or summary.unseeded_digest != digest:
            continue
        identities = _identities(summary)
        if seen.isdisjoint(identities):
            yield entry
        seen |= identities


def _identities(summary: Summary) -> set[object]:
    """What a run alone has: its id, and each of the rates of its steps to the last digit."""
    return {summary.run_id, *(item for item in summary.metrics.items() if item[0].startswith(_OF_STEPS))}
