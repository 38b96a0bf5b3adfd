"""The files of the bundle of a reproduction, gathered from what was measured and from the store."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flagbench.errors import FlagbenchError
from flagbench.images.sbom import sbom_of
from flagbench.records.model import Record
from flagbench.records.store import Store
from flagbench.runs.doctor import Diagnosis
from flagbench.runs.launchers.clock import utc_now
from flagbench.runs.reproduce import contents, surroundings
from flagbench.runs.reproduce.limits import LimitOptions
from flagbench.runs.reproduce.plan import Plan
from flagbench.runs.reproduce.repeat import Measured
from flagbench.runs.target import Target
from flagbench_core.redaction import redact


@contextmanager
def bundle_files(
    plan: Plan,
    limits: LimitOptions,
    target: Target,
    findings: Sequence[Diagnosis],
    command: Sequence[str],
    outcome: Measured,
    store: Store,
    log: str,
) -> Iterator[dict[str, bytes | Path]]:
    """The files by their paths in the bundle; those that are large are copied from the store while it is open."""
    series, result = outcome.series, outcome.result
    assert series is not None
    assert result is not None
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="flagbench-bundle-") as temporary:
        files: dict[str, bytes | Path] = {
            contents.CLAIM: contents.to_json(contents.claim_document(plan.claim)),
            contents.VERDICT: contents.to_json(result.to_dict()),
            contents.series_path(series.document.series_id): series.document.to_json(),
            contents.ENVIRONMENT: contents.to_json(surroundings.environment(os.environ)),
            contents.LOG: surroundings.cleaned(log, os.environ).encode(),
        }
        for record, content in _records(outcome):
            files[contents.record_path(record.record_id)] = content
            try:
                files.update(_raw(record, store, Path(temporary)))
            except FlagbenchError as error:
                missing[contents.raw_path(record.record_id, "")] = redact(error.message)
        files.update(_parts(target, outcome, missing))
        about = _about(plan, limits, target, findings, command, outcome)
        files[contents.REPRODUCTION] = contents.to_json({**about, "missing": missing})
        yield files


def _records(outcome: Measured) -> Iterator[tuple[Record, bytes]]:
    """Every record that the series names, with its bytes."""
    assert outcome.series is not None
    by_id = {record.record_id: record for record in (*outcome.series.records, *outcome.series.failed)}
    for run in outcome.series.document.runs:
        if run.record_id in by_id and run.run in outcome.contents:
            yield by_id[run.record_id], outcome.contents[run.run]


def _raw(record: Record, store: Store, folder: Path) -> Iterator[tuple[str, Path]]:
    """What the nodes of a run kept, copied from the store. Raises FlagbenchError where it does not give it."""
    for number, bundle in enumerate(store.bundles.find(record.record_id)):
        path = folder / f"{record.record_id}-{number}"
        store.bundles.get(bundle, path)
        yield contents.raw_path(record.record_id, bundle.name), path


def _parts(target: Target, outcome: Measured, missing: dict[str, str]) -> dict[str, bytes | Path]:
    """What the runs consisted of: the bill of materials of the image, or the packages of this Python."""
    if target.image is None:
        return {contents.PACKAGES: contents.to_json(surroundings.packages())}
    ids = {record.system.image.id for record in outcome.records}
    found: Path | None = None
    if len(ids) == 1 and (image_id := ids.pop()):
        try:
            found = sbom_of(target.image, image_id)
        except ValueError:
            found = None
    if found is None:
        missing[contents.SBOM] = f"this machine has no bill of materials of {target.image}: it was not built here"
        return {}
    return {contents.SBOM: found}


def _about(
    plan: Plan,
    limits: LimitOptions,
    target: Target,
    findings: Sequence[Diagnosis],
    command: Sequence[str],
    outcome: Measured,
) -> Mapping[str, Any]:
    """What was asked for, found and done."""
    series, clock = outcome.series, outcome.clock
    assert series is not None
    return {
        "schema": "reproduction/v1",
        "claim": plan.claim.id,
        "created_at": utc_now(),
        "flagbench": contents.this_flagbench(),
        "command": [redact(word) for word in command],
        "stack": plan.request.stack.name,
        "via": target.via,
        "image": target.image,
        "differs": list(plan.differs),
        "unpublished": list(plan.unpublished),
        "preflight": [asdict(finding) for finding in findings],
        "limits": {
            "runs": limits.looks[-1],
            "looks": list(limits.looks),
            "minutes": limits.minutes,
            "price_per_hour": limits.price,
        },
        "ending": outcome.ending,
        "exit_code": outcome.code,
        "runs": sum(run.state == "ok" for run in series.document.runs),
        "seconds": round(clock.seconds, 3),
        "cost": None if clock.cost is None else round(clock.cost, 4),
    }
