"""Whether a series is consistent with its nonce and with its records; one that is not proves nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from flagbench.records.model import Record
from flagbench.records.store.series_document import SIDES, SeriesDocument, SeriesRun, run_id_of, seed_of, series_id_of
from flagbench.terminal import brief

DRIFT = 1e-4
"""Largest relative drift between the clocks of launcher and run."""


def order_problems(series: SeriesDocument) -> Iterator[str]:
    """Where runs are missing, or ids and seeds do not follow from the nonce, which the verifier chose."""
    if series.series_id not in [series_id_of(series.nonce, side) for side in (None, *SIDES)]:
        yield f"its id {series.series_id} does not follow from its nonce {series.nonce}"
    if [run.run for run in series.runs] != [*range(1, series.requested + 1)]:
        yield f"it lists {len(series.runs)} runs, and {series.requested} were requested, numbered from 1"
    for run in series.runs:
        if run.run_id != run_id_of(series.series_id, run.run):
            yield f"run {run.run}: run_id {run.run_id} does not follow from the series' id {series.series_id}"
        given = series.runs[0].seed if series.seeds == "given" else seed_of(series.nonce, run.run)
        if run.seed != given:
            yield f"run {run.run}: the seed {run.seed} is not {given}, which follows from the nonce or was given"
        if run.state == "ok" and run.record_id is None:
            yield f"run {run.run}: it ended as ok, and names no record"


def record_problems(run: SeriesRun, record: Record, content: bytes) -> Iterator[str]:
    """Where a record is not what the series says of it."""
    name = f"record {record.record_id}"
    if (found := hashlib.sha256(content).hexdigest()) != run.sha256:
        yield f"{name} has the sha256 {found}, the series says {run.sha256}"
    pairs: dict[str, tuple[object, object]] = {
        "run_id": (record.run_id, run.run_id),
        "status.state": (record.status.state, run.state),
    }
    if record.config is not None:
        pairs["config.seed"] = (record.config.get("seed"), run.seed)
    for field, (here, there) in pairs.items():
        if here != there:
            yield f"{name} has {field} {brief(str(here))}, the series says {brief(str(there))}"
    if record.duration is not None and run.seconds is not None and record.duration > run.seconds * (1 + DRIFT) + 1:
        yield f"{name} says that the run took {record.duration:.1f} s, the launcher {run.seconds:.1f} s"
