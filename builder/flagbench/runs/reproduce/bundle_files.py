"""Gathers the files of the bundle of a reproduction: documents about it, the records, and raw events from the store.

`flagbench reproduce` writes them into one archive (records/bundle_archive.py). The module `bundle` names the files
and reads them back.
"""

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
from flagbench.runs.reproduce.repeat import Reproduction, ReproductionOutcome
from flagbench.runs.target import Target
from flagbench.system.clock import utc_now
from flagbench_core.environment import secret_values
from flagbench_core.redaction import redact
from flagbench_core.scratch import scratch


@contextmanager
def bundle_files(
    reproduction: Reproduction, outcome: ReproductionOutcome, store: Store, catalog: Catalog, log: str
) -> Iterator[dict[str, bytes | Path]]:
    """The files of the bundle by their paths in it: contents, or temporary copies of large files.

    The copies exist until the end of the `with` block. A file that cannot be read is named in the document of the
    reproduction as missing, with the reason.
    """
    series = outcome.series
    result = outcome.result
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
        for record, content in _stored_records(outcome):
            files[documents.record_path(record.record_id)] = content
            try:
                files.update(_copy_raw_events(record, store, Path(temporary)))
            except FlagbenchError as error:
                missing[bundle.raw_path(record.record_id, "")] = redact(error.message)
        if reproduction.target.image is None:
            files[documents.PACKAGES] = documents.to_json(documents.packages())
        else:
            try:
                files[bundle.LOCK] = _lock_of_image(reproduction.target, outcome.records, catalog)
            except FlagbenchError as error:
                missing[bundle.LOCK] = error.message
        files[bundle.REPRODUCTION] = documents.to_json(
            {**_reproduction_document(reproduction, outcome), "missing": missing}
        )
        yield files


def _stored_records(outcome: ReproductionOutcome) -> Iterator[tuple[Record, bytes]]:
    """Every record that the series names, with its JSON."""
    series = outcome.series
    assert series is not None
    records = {record.record_id: record for record in (*series.records, *series.failed)}
    for run in series.document.runs:
        if run.record_id in records and run.run in outcome.contents:
            yield records[run.record_id], outcome.contents[run.run]


def _copy_raw_events(record: Record, store: Store, folder: Path) -> Iterator[tuple[str, Path]]:
    """Copy the raw events of each node from the store to a folder. Yields the paths in the bundle and in the folder.

    Raises FlagbenchError if they cannot be read.
    """
    for number, stored in enumerate(store.bundles.find(record.record_id)):
        path = folder / f"{record.record_id}-{number}"
        store.bundles.get(stored, path)
        yield bundle.raw_path(record.record_id, stored.name), path


def _lock_of_image(target: Target, records: Sequence[Record], catalog: Catalog) -> Path:
    """The lock file that the image was built from: the one with the digest that the records name.

    Raises FlagbenchError (USAGE) if this machine has another lock for the image's stack, or none.
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


def _reproduction_document(reproduction: Reproduction, outcome: ReproductionOutcome) -> dict[str, Any]:
    """The document `reproduction.json`: the command, limits, preflight findings and outcome of the reproduction."""
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
    """The text of a log with credentials, and the secrets in these environment variables, replaced."""
    return redact(text, secret_values(variables))
