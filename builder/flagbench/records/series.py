"""Series in a store: written while their runs end, read, killed ones too, and checked against their records.

Every object is put once and never changed, which a bucket can do as well as a folder: `series/ID/begun.json` before
the first run, `series/ID/run-K.json` when run K has ended, and at last `series/ID.json`, which holds all of them;
then the parts are removed.
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

_PART_BYTES = 64 * 2**10
_DRIFT = 1e-4
"""Largest relative drift between the clocks of launcher and run."""


class LeftOut(msgspec.Struct, frozen=True):
    """A run of a series that is no part of its sample."""

    run: int
    run_id: str
    reason: str
    """Such as `failed, exit code 5: out of memory`."""


@dataclass(frozen=True)
class Series:
    """A series with its records."""

    document: SeriesDocument
    records: tuple[Record, ...]
    """Of the runs that ended well, in order."""
    left_out: tuple[LeftOut, ...]
    problems: tuple[str, ...]
    """Where the series contradicts itself or its records: such a series proves nothing."""
    failed: tuple[Record, ...] = field(default=(), repr=False)
    """Records of runs that did not end well."""


def read_series(store: Store, name: str) -> Series:
    """The series of that id with its records, checked. Raises StoreError as `load_series` and `check_series`."""
    return check_series(store, load_series(store, name))


def series_ids(store: Store) -> list[str]:
    """The ids of all series, ended or not, sorted. Raises StoreError (USAGE) if the address cannot be a store."""
    return sorted(series_keys(store))


def load_series(store: Store, series_id: str) -> SeriesDocument:
    """The series of that id; if it has not ended or was killed, its runs so far.

    Raises StoreError (DATA) if it does not exist, SeriesError (DATA) if it is damaged.
    """
    return _load(store, series_id, series_keys(store).get(series_id, set()))


def load_all(store: Store) -> Iterator[tuple[str, SeriesDocument | FlagbenchError]]:
    """Each series by its id, or why it cannot be read. Raises StoreError (USAGE) as `series_ids` does."""
    for series_id, keys in sorted(series_keys(store).items()):
        try:
            yield series_id, _load(store, series_id, keys)
        except FlagbenchError as error:
            yield series_id, error


def series_keys(store: Store) -> dict[str, set[str]]:
    """The keys of each series: its own, or those of its parts. Raises StoreError (USAGE)."""
    keys: dict[str, set[str]] = {}
    for blob in store.blobs.list(series_prefix()):
        if blob.problem is not None:
            continue
        series_id = parse_series_key(blob.key)
        if series_id is not None:
            keys.setdefault(series_id, set()).add(blob.key)
    return keys


def _load(store: Store, series_id: str, keys: set[str]) -> SeriesDocument:
    whole = series_key(series_id)
    if whole in keys:
        return _load_document(store, series_id, whole)
    begun = series_key(series_id, BEGUN)
    if begun not in keys:
        raise _absent(store, series_id)
    series = _load_document(store, series_id, begun)
    for run in series.runs:
        part = series_key(series_id, part_name(run.run))
        if part in keys:
            content = store.blobs.get(part, _PART_BYTES)
            series = series.with_run(_parse_run(content, store.blobs.location(part)))
    return series


def _load_document(store: Store, series_id: str, key: str) -> SeriesDocument:
    location = store.blobs.location(key)
    series = parse_series(store.blobs.get(key, MAX_SERIES_BYTES), location)
    if series.series_id != series_id:
        raise SeriesError(f"{location} is the series {series.series_id}")
    return series


def place_of(series: SeriesDocument, run: SeriesRun) -> Place | None:
    """The key of the record of a run in a store, in its parts; None for a run without a record."""
    if run.record_id is None or run.created_at is None:
        return None
    return Place(series.request.case, series.request.stack, run.created_at[:10], run.record_id)


def check_series(store: Store, series: SeriesDocument) -> Series:
    """The series with its records from the store, each checked against the series.

    Raises StoreError (DATA) if a record cannot be read that may be sound.
    """

    @cache
    def list_keys(folder: str) -> set[str]:
        return {blob.key for blob in store.blobs.list(folder)}

    def read_content(run: SeriesRun) -> bytes | None:
        place = place_of(series, run)
        if place is None:
            return None
        folder = place.key.rpartition("/")[0]
        if place.key not in list_keys(f"{folder}/"):
            return None
        return store.get_at(place)

    return with_records(series, read_content)


def with_records(series: SeriesDocument, content_of: Callable[[SeriesRun], bytes | None]) -> Series:
    """The series with its records, checked as `check_series` does.

    Args:
        content_of: the bytes of a run's record; None if it does not exist.
    """
    records: list[Record] = []
    failed: list[Record] = []
    left_out: list[LeftOut] = []
    problems = [*_order_problems(series)]
    for run in series.runs:
        try:
            content = content_of(run)
            record = None if content is None else read_record(content)
        except Unread:
            raise
        except FlagbenchError as error:
            problems.append(f"run {run.run}: {error.message}")
            continue
        if run.state == "not_run" and series.ended_by_rule:
            continue
        if content is None or record is None:
            left_out.append(LeftOut(run.run, run.run_id, _why(run)))
            continue
        problems += [f"run {run.run}: {problem}" for problem in _record_problems(run, record, content)]
        if run.state == "ok":
            records.append(record)
        else:
            failed.append(record)
            left_out.append(LeftOut(run.run, run.run_id, _why(run)))
    problems += _image_problems(records)
    return Series(series, tuple(records), tuple(left_out), tuple(problems), tuple(failed))


def series_of(store: Store, record: Record) -> SeriesDocument | None:
    """The series in the store that names the record as one of its runs; None if no series does."""
    series_id, dash, number = record.run_id.rpartition("-")
    if not (dash and number.isascii() and number.isdecimal()):
        return None
    with suppress(FlagbenchError):  # the key may not list, or the series is damaged: the record can still be sound
        series = load_series(store, series_id)
        if any(run.record_id == record.record_id for run in series.runs):
            return series
    return None


def _why(run: SeriesRun) -> str:
    """Why a run is left out."""
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


def _order_problems(series: SeriesDocument) -> Iterator[str]:
    """Where runs are missing, or ids and seeds do not follow from the name, which the verifier chose."""
    if series.series_id not in [series_id_of(series.nonce, side) for side in (None, *SIDES)]:
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
    """Where a record differs from what the series states about it."""
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
    if record.duration is not None and run.seconds is not None and record.duration > run.seconds * (1 + _DRIFT) + 1:
        yield f"{name} says that the run took {record.duration:.1f} s, the launcher {run.seconds:.1f} s"


def _image_problems(records: list[Record]) -> Iterator[str]:
    """Runs of different images are not one series: a tag may have moved between them."""
    for name in ("context_digest", "id", "digest"):
        images = {getattr(record.system.image, name) for record in records} - {None, ""}
        if len(images) > 1:
            listed = ", ".join(sorted(images))
            yield f"its runs are of {len(images)} different images: system.image.{name} is {listed}"
            return


def _parse_run(content: bytes, name: str) -> SeriesRun:
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


BEGUN = "begun"


class SeriesWriter:
    """Writes one series to a store while its runs end."""

    def __init__(self, store: Store, series: SeriesDocument) -> None:
        """`series`: as it is planned, its runs `missing`."""
        self._store = store
        self.series = series
        """The series so far."""
        self.started: set[int] = set()
        """The numbers of the runs that may have begun their work, however they end."""

    def begin(self) -> None:
        """Reserve the series' id, before anything runs.

        Raises StoreError: usage if the store has a series of that id, NOT_STORED if it accepts nothing now.
        """
        series_id = self.series.series_id
        blobs = self._store.blobs
        begun = series_key(series_id, BEGUN)
        if not blobs.put_if_absent(begun, self.series.to_json()):
            raise _taken(self._store, series_id, "was begun by another process, or was killed")
        # In this order: the writer of a finished series removes its parts only after it has put the document.
        with suppress(ListingDenied):  # of a key that may only write; then the last put fails
            if any(blob.key == series_key(series_id) for blob in blobs.list(series_prefix())):
                blobs.delete(begun)
                raise _taken(self._store, series_id, "exists already")

    def add(self, run: SeriesRun) -> None:
        """Note that a run has ended. Raises StoreError (NOT_STORED); the run is in the series in any case."""
        self.series = self.series.with_run(run)
        key = series_key(self.series.series_id, part_name(run.run))
        if not self._store.blobs.put_if_absent(key, msgspec.json.encode(run)):
            raise _taken(self._store, self.series.series_id, "was written by another process, too")

    def describe(self, image: Image) -> None:
        """Name the image that a record was made by, unless another record's is named already."""
        request = self.series.request
        if request.image_digest is None and request.image_id is None:
            request = replace(request, image_digest=image.digest, image_id=image.id)
            self.series = replace(self.series, request=request)

    def finish(self, ended_at: str) -> str:
        """Store the whole series; returns where. Raises StoreError (NOT_STORED); what was noted stays readable."""
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
        """Remove a series that ran nothing."""
        self._remove_parts()

    def _remove_parts(self) -> None:
        with suppress(StoreError):  # such as that of a key that may only write: they do no harm
            self._store.blobs.clear(series_prefix(self.series.series_id))


def part_name(run: int) -> str:
    """The name of the object that says how a run ended."""
    return f"run-{run}"


def _taken(store: Store, series_id: str, how: str) -> StoreError:
    return StoreError(
        f"the series {series_id} {how} ({store.blobs.location(series_key(series_id))})",
        remedy="choose another --name: each names one series",
        code=ExitCode.USAGE,
    )
