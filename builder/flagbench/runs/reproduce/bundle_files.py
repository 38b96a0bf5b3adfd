"""The files of the bundle of a reproduction, gathered from what was measured and from the store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flagbench.errors import FlagbenchError
from flagbench.images.lockfile import load_lock, lock_path
from flagbench.manifests.model import Catalog
from flagbench.records import bundle_documents as documents
from flagbench.records.model import Record
from flagbench.records.store import Store
from flagbench.runs.reproduce import bundle
from flagbench.runs.reproduce.repeat import Measured, Reproduction
from flagbench.runs.target import Target
from flagbench.system.clock import utc_now
from flagbench_core.environment import secret_values
from flagbench_core.redaction import redact
from flagbench_core.scratch import scratch


@contextmanager
def bundle_files(
    reproduction: Reproduction, outcome: Measured, store: Store, catalog: Catalog, log: str
) -> Iterator[dict[str, bytes | Path]]:
    """The files by their paths in the bundle; those that are large are copied from the store while it is open."""
    series, result = outcome.series, outcome.result
    assert series is not None
    assert result is not None
    missing: dict[str, str] = {}
    with scratch() as temporary:
        files: dict[str, bytes | Path] = {
            bundle.CLAIM: documents.to_json(bundle.claim_document(reproduction.plan.claim)),
            bundle.VERDICT: documents.to_json(result.to_dict()),
            bundle.series_path(series.document.series_id): series.document.to_json(),
            documents.ENVIRONMENT: documents.to_json(documents.environment(os.environ)),
            bundle.LOG: without_secrets(log, os.environ).encode(),
        }
        for record, content in _records(outcome):
            files[documents.record_path(record.record_id)] = content
            try:
                files.update(_raw(record, store, Path(temporary)))
            except FlagbenchError as error:
                missing[bundle.raw_path(record.record_id, "")] = redact(error.message)
        if reproduction.target.image is None:
            files[documents.PACKAGES] = documents.to_json(documents.packages())
        else:
            try:
                files[bundle.LOCK] = _lock_of_image(reproduction.target, outcome.records, catalog)
            except FlagbenchError as error:
                missing[bundle.LOCK] = error.message
        files[bundle.REPRODUCTION] = documents.to_json({**_about(reproduction, outcome), "missing": missing})
        yield files


def _records(outcome: Measured) -> Iterator[tuple[Record, bytes]]:
    """Every record that the series names, with its bytes."""
    assert outcome.series is not None
    by_id = {record.record_id: record for record in (*outcome.series.records, *outcome.series.failed)}
    for run in outcome.series.document.runs:
        if run.record_id in by_id and run.run in outcome.contents:
            yield by_id[run.record_id], outcome.contents[run.run]


def _raw(record: Record, store: Store, folder: Path) -> Iterator[tuple[str, Path]]:
    """The raw events of each node, copied from the store. Raises FlagbenchError where they cannot be read."""
    for number, stored in enumerate(store.bundles.find(record.record_id)):
        path = folder / f"{record.record_id}-{number}"
        store.bundles.get(stored, path)
        yield bundle.raw_path(record.record_id, stored.name), path


def _lock_of_image(target: Target, records: Sequence[Record], catalog: Catalog) -> Path:
    """The file of the lock that the image was built from: the one with the digest that the records have.

    Raises FlagbenchError (usage) where this machine has another lock of the image's stack, or none.
    """
    from flagbench.images.render.templates import images_root  # jinja2, which `accept` does not need

    stack, images = target.request.stack, images_root(catalog)
    lock = load_lock(stack, images)
    digests = {record.software.lock_digest for record in records}
    if lock is None or digests != {lock.digest}:
        raise FlagbenchError(
            f"this machine does not have the lock that {target.image} was built from",
            remedy="build the image with the flagbench that runs it",
        )
    return lock_path(stack.name, images)


def _about(reproduction: Reproduction, outcome: Measured) -> dict[str, Any]:
    """The document of the reproduction: its command, limits, preflight and outcome."""
    limits, series = reproduction.limits, outcome.series
    assert series is not None
    return {
        "schema": "reproduction/v1",
        **reproduction.facts,
        **outcome.facts,
        "created_at": utc_now(),
        "flagbench": documents.this_flagbench(),
        "command": [redact(word) for word in reproduction.command],
        "stack": reproduction.plan.request.stack.name,
        "limits": {
            "runs": limits.looks[-1],
            "looks": list(limits.looks),
            "minutes": limits.minutes,
            "price_per_hour": limits.price,
        },
        "exit_code": outcome.code,
        "runs": sum(run.state == "ok" for run in series.document.runs),
    }


def without_secrets(text: str, variables: Mapping[str, str]) -> str:
    """A log without credentials."""
    return redact(text, secret_values(variables))
