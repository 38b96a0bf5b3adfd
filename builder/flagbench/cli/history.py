"""The spread between earlier runs of a configuration, from a store's index."""

from __future__ import annotations

from collections.abc import Sequence

from flagbench.record.model import Record
from flagbench.stats.between import DEFAULT, Prior, history_prior
from flagbench.stores import Store

MOST_RUNS = 50
"""The newest ones."""


def store_priors(store: Store, records: Sequence[Record], known: Sequence[Record]) -> dict[str, Prior]:
    """What is known of the spread between runs of each metric; none where the store has no earlier runs.

    Earlier runs are those of the same case, stack and configuration digest that ended well. Where they are of several
    machines or software versions, their spread is larger, never smaller.

    Args:
        known: the records that are verified or held against: they are no earlier runs.
    """
    first = records[0]
    if first.config_digest is None:
        return {}
    seen = {record.run_id for record in known}
    values: dict[str, list[float]] = {}
    found = 0
    for entry in store.list(first.case, first.stack):
        summary = entry.summary
        if summary is None or summary.state != "ok" or summary.config_digest != first.config_digest:
            continue
        if summary.run_id in seen:
            continue
        seen.add(summary.run_id)
        found += 1
        for name, value in summary.metrics.items():
            if value > 0:
                values.setdefault(name, []).append(value)
        if found == MOST_RUNS:
            break
    priors = {name: history_prior([group]) for name, group in values.items()}
    return {name: prior for name, prior in priors.items() if prior != DEFAULT}
