"""Series in a store: writes one while its runs end, reads it, and checks it against the records of its runs.

A series is a number of runs that were requested together (`series_document`). Each of its objects is put once and
never changed, which a bucket can do as well as a folder:

- `series/ID/begun.json` before the first run, and `series/ID/run-K.json` when run K has ended: the parts
- `series/ID.json` at last: the document, which has all runs. The parts are removed then.

So a series that was killed can be read from its parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

import msgspec
from msgspec.structs import replace

from flagbench.console.terminal import brief
from flagbench.errors import FlagbenchError
from flagbench.records.blobs import ListingDenied, StoreError, Unread
from flagbench.records.model import Image, Record
from flagbench.records.read import read_record
from flagbench.records.series_document import (
    MAX_SERIES_BYTES,
    SIDES,
    SeriesDocument,
    SeriesError,
    SeriesRun,
    parse_series,
    run_id_of,
    seed_of,
    series_id_of,
)
from flagbench.records.store import Store
from flagbench.records.store_keys import Place, parse_series_key, series_key, series_prefix
from flagbench_core.exit_codes import ExitCode

BEGUN = "begun"
"""The name of the part that is written before the first run."""
_PART_BYTES = 64 * 2**10
"""The size limit of the part of one run, which has some hundred bytes."""
_CLOCK_DRIFT = 1e-4
"""Largest relative drift between the clocks of the launcher and the run, which may be on different machines."""
_ROUNDING_SECONDS = 1
"""A run may seem to take this much longer than its launcher measured, because both times are rounded."""


class LeftOut(msgspec.Struct, frozen=True):
    """A run of a series that is not in its sample, because it has no sound record of a run that ended well."""

    run: int
    run_id: str
    reason: str
    """How the run ended, such as `failed, exit code 5: out of memory`."""


@dataclass(frozen=True)
class Series:
    """A series with its records."""

    document: SeriesDocument
    """The series as it is stored."""
    records: tuple[Record, ...]
    """The records of the runs that ended well, in the order of the runs."""
    left_out: tuple[LeftOut, ...]
    """The runs that `records` does not have."""
    problems: tuple[str, ...]
    """Where the series contradicts itself or its records. A series with problems proves nothing."""
    failed: tuple[Record, ...] = field(default=(), repr=False)
    """The records of the runs that did not end well."""


def read_series(store: Store, series_id: str) -> Series:
    """Return the series of that id with its records, checked.

    Raises StoreError as `load_series` and `check_series` do.
    """
    return check_series(store, load_series(store, series_id))


def series_ids(store: Store) -> list[str]:
    """Return the ids of all series, also of those that have not ended, sorted.

    Raises StoreError (USAGE) if the address cannot be a store.
    """
    return sorted(_find_keys(store))


def load_series(store: Store, series_id: str) -> SeriesDocument:
    """Return the series of that id, without its records. One that has not ended or was killed has its runs so far.

    Raises StoreError (DATA) if it does not exist, SeriesError (DATA) if it is damaged.
    """
    keys = _find_keys(store).get(series_id, set())
    return _load(store, series_id, keys)


def load_all(store: Store) -> Iterator[tuple[str, SeriesDocument | FlagbenchError]]:
    """Yield the id of each series with the series, or with the error of reading it.

    Raises StoreError (USAGE) as `series_ids` does.
    """
    for series_id, keys in sorted(_find_keys(store).items()):
        try:
            yield series_id, _load(store, series_id, keys)
        except FlagbenchError as error:
            yield series_id, error


def _find_keys(store: Store) -> dict[str, set[str]]:
    """Return the keys of each series by its id: that of its document, or those of its parts.

    Raises StoreError (USAGE) if the address cannot be a store.
    """
    keys: dict[str, set[str]] = {}
    for blob in store.blobs.list(series_prefix()):
        if blob.problem is not None:
            continue
        series_id = parse_series_key(blob.key)
        if series_id is not None:
            keys.setdefault(series_id, set()).add(blob.key)
    return keys


def _load(store: Store, series_id: str, keys: set[str]) -> SeriesDocument:
    """Return a series from its document, or from its parts if it has not ended; `keys` are those that it has."""
    key = series_key(series_id)
    if key in keys:
        return _load_document(store, series_id, key)
    key_of_begun = series_key(series_id, BEGUN)
    if key_of_begun not in keys:
        raise _absent(store, series_id)
    series = _load_document(store, series_id, key_of_begun)
    for run in series.runs:
        key_of_run = series_key(series_id, part_name(run.run))
        if key_of_run in keys:
            content = store.blobs.get(key_of_run, _PART_BYTES)
            ended_run = _parse_run(content, store.blobs.location(key_of_run))
            series = series.with_run(ended_run)
    return series


def _load_document(store: Store, series_id: str, key: str) -> SeriesDocument:
    location = store.blobs.location(key)
    series = parse_series(store.blobs.get(key, MAX_SERIES_BYTES), location)
    if series.series_id != series_id:
        raise SeriesError(f"{location} is the series {series.series_id}")
    return series


def _place_of(series: SeriesDocument, run: SeriesRun) -> Place | None:
    """Return the place of a run's record in a store; None for a run without a record."""
    if run.record_id is None or run.created_at is None:
        return None
    day = run.created_at.partition("T")[0]
    return Place(series.request.case, series.request.stack, day, run.record_id)


def check_series(store: Store, series: SeriesDocument) -> Series:
    """Return the series with its records from the store, each checked against the series.

    Raises StoreError (DATA) if the store does not give a record that may be sound.
    """

    @cache
    def list_keys(folder: str) -> set[str]:
        return {blob.key for blob in store.blobs.list(folder)}

    def read_content(run: SeriesRun) -> bytes | None:
        place = _place_of(series, run)
        if place is None:
            return None
        folder = place.key.rpartition("/")[0]
        if place.key not in list_keys(f"{folder}/"):
            return None
        return store.get_at(place)

    return with_records(series, read_content)


def with_records(series: SeriesDocument, content_of: Callable[[SeriesRun], bytes | None]) -> Series:
    """Return the series with its records, checked as `check_series` does.

    Args:
        content_of: returns the bytes of a run's record, or None if it does not exist.
    """
    records: list[Record] = []
    failed: list[Record] = []
    left_out: list[LeftOut] = []
    problems = list(_document_problems(series))
    for run in series.runs:
        try:
            content = content_of(run)
            if content is not None:
                record = read_record(content)
        except Unread:
            raise
        except FlagbenchError as error:
            problems.append(f"run {run.run}: {error.message}")
            continue
        if run.state == "not_run" and series.ended_by_rule:
            continue  # the run was not needed, so it is not left out
        if content is None:
            left_out.append(LeftOut(run.run, run.run_id, _reason_left_out(run)))
            continue
        for problem in _record_problems(run, record, content):
            problems.append(f"run {run.run}: {problem}")
        if run.state == "ok":
            records.append(record)
        else:
            failed.append(record)
            left_out.append(LeftOut(run.run, run.run_id, _reason_left_out(run)))
    problems += _image_problems(records)
    return Series(series, tuple(records), tuple(left_out), tuple(problems), tuple(failed))


def series_of(store: Store, record: Record) -> SeriesDocument | None:
    """Return the series in the store that names the record as one of its runs; None if no series does."""
    series_id, dash, number = record.run_id.rpartition("-")
    is_run_of_series = dash and number.isascii() and number.isdecimal()
    if not is_run_of_series:
        return None
    with suppress(FlagbenchError):  # the key may not list, or the series is damaged: the record can still be sound
        series = load_series(store, series_id)
        if any(run.record_id == record.record_id for run in series.runs):
            return series
    return None


def _reason_left_out(run: SeriesRun) -> str:
    if run.state == "ok":
        return f"its record {run.record_id} is not in the store"
    if run.state == "not_run":
        return "not run: the series ended before"
    if run.state == "missing":
        return "missing: nothing says how it ended"
    text: str = run.state
    if run.exit_code is not None:
        text += f", exit code {run.exit_code}"
    if run.reason:
        text += f": {run.reason}"
    return text


def _document_problems(series: SeriesDocument) -> Iterator[str]:
    """Yield where runs are missing from a series, or its ids and seeds do not follow from its name.

    The person who verifies a series chose its name, so its runs cannot have been picked from a larger number.
    """
    possible_ids = [series_id_of(series.nonce, side) for side in (None, *SIDES)]
    if series.series_id not in possible_ids:
        yield f"its id {series.series_id} does not follow from its name {series.nonce}"
    if [run.run for run in series.runs] != [*range(1, series.requested + 1)]:
        yield f"it lists {len(series.runs)} runs, and {series.requested} were requested, numbered from 1"
    for run in series.runs:
        if run.run_id != run_id_of(series.series_id, run.run):
            yield f"run {run.run}: run_id {run.run_id} does not follow from the series' id {series.series_id}"
        seed = seed_of(series.nonce, run.run)
        if series.seeds == "given":
            seed = series.runs[0].seed
        if run.seed != seed:
            yield f"run {run.run}: the seed {run.seed} is not {seed}, which follows from the name or was given"
        if run.state == "ok" and run.record_id is None:
            yield f"run {run.run}: it ended as ok, and names no record"


def _record_problems(run: SeriesRun, record: Record, content: bytes) -> Iterator[str]:
    """Yield where a record differs from what the series states about it."""
    name = f"record {record.record_id}"
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != run.sha256:
        yield f"{name} has the sha256 {sha256}, the series says {run.sha256}"
    in_record: dict[str, object] = {"run_id": record.run_id, "status.state": record.status.state}
    in_series: dict[str, object] = {"run_id": run.run_id, "status.state": run.state}
    if record.config is not None:
        in_record["config.seed"] = record.config.get("seed")
        in_series["config.seed"] = run.seed
    for path in in_record:
        if in_record[path] != in_series[path]:
            yield f"{name} has {path} {brief(str(in_record[path]))}, the series says {brief(str(in_series[path]))}"
    if record.duration is not None and run.seconds is not None:
        longest = run.seconds * (1 + _CLOCK_DRIFT) + _ROUNDING_SECONDS
        if record.duration > longest:
            yield f"{name} says that the run took {record.duration:.1f} s, the launcher {run.seconds:.1f} s"


def _image_problems(records: list[Record]) -> Iterator[str]:
    """Yield a problem if the runs are of different images: they had the same tag, which may have moved between them.

    An image has up to three identifiers in a record. The problem is reported once, by the first that differs.
    """
    for name in ("context_digest", "id", "digest"):
        images = {getattr(record.system.image, name) for record in records} - {None, ""}
        if len(images) > 1:
            listed = ", ".join(sorted(images))
            yield f"its runs are of {len(images)} different images: system.image.{name} is {listed}"
            return


def _parse_run(content: bytes, name: str) -> SeriesRun:
    """Return the part of a run, which errors call `name`. Raises SeriesError (DATA) if it is damaged."""
    try:
        return msgspec.json.decode(content, type=SeriesRun)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise SeriesError(f"{name} does not say how a run ended: {error}") from None


def _absent(store: Store, series_id: str) -> StoreError:
    return StoreError(
        f"there is no series '{series_id}' in {store.url}",
        remedy="`flagbench results series` shows the stored series; --store names another store",
        code=ExitCode.DATA,
    )


class SeriesWriter:
    """Writes one series to a store while its runs end: `begin`, then `add` for each run, and `finish`."""

    def __init__(self, store: Store, series: SeriesDocument) -> None:
        """Prepare to write a series as it is planned: the state of all its runs is `missing`."""
        self._store = store
        self.series = series
        """The series so far."""
        self.started: set[int] = set()
        """The numbers of the runs that may have begun their work, however they end. The caller adds to it."""

    def begin(self) -> None:
        """Reserve the series' id, before anything runs.

        Raises StoreError (USAGE) if the store has a series of that id, and (NOT_STORED) if it accepts nothing now.
        """
        series_id = self.series.series_id
        blobs = self._store.blobs
        begun = series_key(series_id, BEGUN)
        if not blobs.put_if_absent(begun, self.series.to_json()):
            raise _taken(self._store, series_id, "was begun by another process, or was killed")
        # The document is looked for only now, because the writer of a finished series puts it before it removes the
        # parts: one of the two is always there.
        with suppress(ListingDenied):  # a key that may only write does not list; then `finish` finds the document
            if any(blob.key == series_key(series_id) for blob in blobs.list(series_prefix())):
                blobs.delete(begun)
                raise _taken(self._store, series_id, "exists already")

    def add(self, run: SeriesRun) -> None:
        """Write down that a run has ended.

        Raises StoreError (NOT_STORED) if the store does not accept it; the run is in `self.series` in any case.
        """
        self.series = self.series.with_run(run)
        key = series_key(self.series.series_id, part_name(run.run))
        if not self._store.blobs.put_if_absent(key, msgspec.json.encode(run)):
            raise _taken(self._store, self.series.series_id, "was written by another process, too")

    def describe(self, image: Image) -> None:
        """Set the image of the series to that of a record; only the first call has an effect."""
        request = self.series.request
        if request.image_digest is None and request.image_id is None:
            request = replace(request, image_digest=image.digest, image_id=image.id)
            self.series = replace(self.series, request=request)

    def finish(self, ended_at: str) -> str:
        """Store the whole series and return its location. Runs that were never started become `not_run`.

        Raises StoreError (NOT_STORED) if the store does not accept it; the parts then stay readable.
        """
        runs = []
        for run in self.series.runs:
            if run.state == "missing" and run.run not in self.started:
                run = replace(run, state="not_run")
            runs.append(run)
        self.series = replace(self.series, runs=tuple(runs), ended_at=ended_at)
        key = series_key(self.series.series_id)
        if not self._store.blobs.put_if_absent(key, self.series.to_json()):
            raise StoreError(
                f"another series is already stored as {self.series.series_id} ({self._store.blobs.location(key)})",
                remedy="choose another --name for the next series; stored ones never change",
            )
        self._remove_parts()
        return self._store.blobs.location(key)

    def abandon(self) -> None:
        """Remove a series of which nothing was run."""
        self._remove_parts()

    def _remove_parts(self) -> None:
        with suppress(StoreError):  # such as for a key that may only write: parts that are left do no harm
            self._store.blobs.clear(series_prefix(self.series.series_id))


def part_name(run: int) -> str:
    """Return the name of the part that says how a run ended."""
    return f"run-{run}"


def _taken(store: Store, series_id: str, problem: str) -> StoreError:
    """Return the error for an id that another series has; `problem` continues a sentence about that series."""
    return StoreError(
        f"the series {series_id} {problem} ({store.blobs.location(series_key(series_id))})",
        remedy="choose another --name: each names one series",
        code=ExitCode.USAGE,
    )
