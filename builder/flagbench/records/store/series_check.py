"""Whether a series is consistent with itself and with its records; one that is not proves nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import dropwhile, pairwise

from flagbench.records.model import Record
from flagbench.records.read import date_fault
from flagbench.records.store.series_document import SIDES, Run, SeriesDocument, run_id_of, seed_of, series_id_of
from flagbench.terminal import brief
from flagbench_core.redaction import REDACTED

CLOCKS = 60.0
"""Seconds by which the clocks of launcher and run may differ: a container engine may be on another machine."""
DRIFT = 1e-4
"""Largest relative drift between these clocks."""
_ENDED = ("ok", "failed", "interrupted")


def order_problems(series: SeriesDocument) -> Iterator[str]:
    """Where ids, seeds, numbers or times of a series do not fit each other."""
    if series.series_id not in [series_id_of(series.nonce, side) for side in (None, *SIDES)]:
        yield f"its id {series.series_id} does not follow from its nonce {series.nonce}"
    if series.requested != len(series.runs):
        yield f"it lists {len(series.runs)} runs, and {series.requested} were requested"
    if series.looks is not None and [*series.looks] != sorted({*series.looks, series.requested}):
        looks = ", ".join(map(str, series.looks))
        yield f"its looks {looks} do not increase up to the {series.requested} runs that were requested"
    for option, expected in (("--repeat", str(series.requested)), ("--nonce", series.nonce)):
        words = [word.partition("=") for word in series.request.command]
        said = [value for name, _, value in words if name == option and value]
        if said and said[-1] not in (expected, REDACTED):
            yield f"its command says {option} {brief(said[-1])}, and it has {brief(expected)}"
    if [run.run for run in series.runs] != [*range(1, len(series.runs) + 1)]:
        yield "its runs are not numbered 1, 2, 3, in order"
    later = dropwhile(lambda run: run.state != "not_run", series.runs)
    if after := next((run for run in later if run.state != "not_run"), None):
        yield f"run {after.run} is {after.state}, and one before it was not run, though runs are in order"
    for run in series.runs:
        yield from (f"run {run.run}: {what}" for what in _run_problems(series, run))
    for name in ("record_id", "sha256"):
        seen: dict[str, int] = {}
        for run in series.runs:
            value = getattr(run, name)
            if value is not None and value in seen:
                yield f"runs {seen[value]} and {run.run} have the same record: {name} {brief(value)}"
            seen.setdefault(value, run.run)
    yield from _overlaps(series)


def record_problems(series: SeriesDocument, run: Run, record: Record, content: bytes) -> Iterator[str]:
    """Where a record is not what the series says of it."""
    name = f"record {record.record_id}"
    if (found := hashlib.sha256(content).hexdigest()) != run.sha256:
        yield f"{name} has the sha256 {found}, the series says {run.sha256}"
    said: dict[str, tuple[object, object]] = {
        "run_id": (record.run_id, run.run_id),
        "created_at": (record.created_at, run.created_at),
        "status.state": (record.status.state, run.state),
        "config_digest": (record.config_digest, run.config_digest),
        "case": (record.case, series.request.case),
        "stack": (record.stack, series.request.stack),
    }
    if record.config is not None:
        said["config.seed"] = (record.config.get("seed"), run.seed)
    if record.launch is not None:
        said["launch.started_at"] = (record.launch.started_at, run.started_at)
        said["launch.seconds"] = (record.launch.seconds, run.seconds)
    for field, (here, there) in said.items():
        if here != there:
            yield f"{name} has {field} {brief(str(here))}, the series says {brief(str(there))}"
    if run.started_at is None or run.seconds is None or date_fault(run.started_at):
        return
    start, made = _time(run.started_at), _time(record.created_at)
    after = (made - start).total_seconds() - (record.system.clock_set_seconds or 0.0)
    if not -CLOCKS <= after <= run.seconds + CLOCKS:
        yield (
            f"{name} was created at {record.created_at}, outside the run, which the launcher started at "
            f"{run.started_at} and which took {run.seconds:.0f} s"
        )
    if record.duration is not None and record.duration > run.seconds * (1 + DRIFT) + 1:
        yield f"{name} says that the run took {record.duration:.1f} s, the launcher {run.seconds:.1f} s"


def _run_problems(series: SeriesDocument, run: Run) -> Iterator[str]:
    if run.run_id != run_id_of(series.series_id, run.run):
        yield f"run_id {run.run_id} does not follow from the series' id {series.series_id}"
    if series.seeds == "derived" and run.seed != seed_of(series.nonce, run.run):
        yield f"the seed {run.seed} does not follow from the nonce {series.nonce}"
    if series.seeds == "given" and run.seed != series.runs[0].seed:
        yield f"the seed {run.seed} is not the given one, {series.runs[0].seed}"
    if run.state in _ENDED and (run.started_at is None or run.seconds is None):
        yield f"it ended as {run.state}, and has no time"
    if run.state == "ok" and None in (run.record_id, run.sha256, run.created_at):
        yield "it ended as ok, and names no record"
    if run.state not in _ENDED and run.record_id is not None:
        yield f"it is {run.state.replace('_', ' ')}, and names a record"
    for at in (run.created_at, run.started_at):
        if at is not None and (fault := date_fault(at)):
            yield fault


def _overlaps(series: SeriesDocument) -> Iterator[str]:
    """Runs of a series are one after another."""
    timed = [run for run in series.runs if run.started_at is not None and not date_fault(run.started_at)]
    for before, after in pairwise(timed):
        # Starts are whole seconds; a clock that was set back by its server moves a start by less than CLOCKS.
        end = _time(before.started_at or "") + timedelta(seconds=before.seconds or 0)
        if _time(after.started_at or "") + timedelta(seconds=CLOCKS) < end:
            yield f"run {after.run} started at {after.started_at}, before run {before.run} had ended"


def _time(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ")
