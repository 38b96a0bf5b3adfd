"""Writes a series while its runs end, so that one that is killed stays readable and nothing is ever half-written.

Every object is put once and never changed, which a bucket can do as well as a folder: `series/ID/begun.json` before
the first run, `series/ID/run-K.json` when run K has ended, and at last `series/ID.json`, which holds all of them;
then the parts are removed.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec
from msgspec.structs import replace

from flagbench.records.blobs import ListingDenied, StoreError
from flagbench.records.model import Image
from flagbench.records.series_document import SeriesDocument, SeriesRun
from flagbench.records.store import Store
from flagbench.records.store_keys import series_key, series_prefix
from flagbench_core.exit_codes import ExitCode

BEGUN = "begun"


class SeriesWriter:
    """One series on its way into a store."""

    def __init__(self, store: Store, series: SeriesDocument) -> None:
        """`series`: as it is planned, its runs `missing`."""
        self._store = store
        self.series = series
        """As far as it has come."""
        self._started: set[int] = set()

    def begin(self) -> None:
        """Reserve the series' id, before anything runs.

        Raises StoreError: usage where the store has a series of that id, NOT_STORED where it takes nothing now.
        """
        series_id, blobs = self.series.series_id, self._store.blobs
        begun = series_key(series_id, BEGUN)
        if not blobs.put_if_absent(begun, self.series.to_json()):
            raise _taken(self._store, series_id, "was begun by another process, or was killed")
        # In this order: the writer of a finished one removes its parts only after the document is there.
        with suppress(ListingDenied):  # of a key that may only write; then the last put fails
            if any(blob.key == series_key(series_id) for blob in blobs.list(series_prefix())):
                blobs.delete(begun)
                raise _taken(self._store, series_id, "is there already")

    def start(self, run: int) -> None:
        """Note, for `finish`, that a run was started: it may have done its work, however it ends."""
        self._started.add(run)

    def take_back(self, run: int) -> None:
        """Note that a run could not be started after all."""
        self._started.discard(run)

    @property
    def empty(self) -> bool:
        """Whether no run was started."""
        return not self._started

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
        runs = tuple(
            replace(run, state="not_run") if run.state == "missing" and run.run not in self._started else run
            for run in self.series.runs
        )
        self.series = replace(self.series, runs=runs, ended_at=ended_at)
        key = series_key(self.series.series_id)
        if not self._store.blobs.put_if_absent(key, self.series.to_json()):
            raise StoreError(
                f"another series is already stored as {self.series.series_id} ({self._store.blobs.location(key)})",
                remedy="choose another nonce for the next series; stored ones never change",
            )
        self._remove_parts()
        return self._store.blobs.location(key)

    def abandon(self) -> None:
        """Forget a series of which nothing was run."""
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
        remedy="choose another --nonce: each names one series",
        code=ExitCode.USAGE,
    )
