"""A series on its way from one store to another: as with records, what is there already never changes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from flagbench.stores.blobs import StoreError
from flagbench.stores.layout import series_key, series_prefix
from flagbench.stores.records import Store
from flagbench.stores.series import load_series, place_of
from flagbench.stores.series_document import MAX_BYTES, Run, SeriesDocument, SeriesError, parse_series
from flagbench.stores.series_writer import BEGUN, part_name


def copy_series(
    source: Store, target: Store, document: SeriesDocument, here: set[str], there: set[str]
) -> str | None:
    """Copy a series without its records, byte for byte; one that has not ended, or was killed, in its parts.

    Args:
        document: the series as `load_series` gave it.
        here, there: its keys in the source and in the target.

    Returns where it is kept, or None if the target has all of it. Raises StoreError (NOT_STORED) if the target has
    another series of that id or takes nothing, and (DATA) where the source does not give it.
    """
    whole = series_key(document.series_id)
    _check_same(target, document, there)
    if whole in there:
        return None
    wanted = [whole]
    if whole not in here:
        parts = [BEGUN, *(part_name(run.run) for run in document.runs)]
        wanted = [key for key in (series_key(document.series_id, part) for part in parts) if key in here]
    missing = [key for key in wanted if key not in there]
    for key in missing:
        if not target.blobs.put_if_absent(key, source.blobs.get(key, MAX_BYTES)):
            raise _another(target, document)
    if whole in missing:
        _remove_parts(target, document, there)
    return target.blobs.location(whole) if missing else None


def put_series(target: Store, content: bytes, name: str, there: Mapping[str, set[str]]) -> str | None:
    """Store a series from a file, which errors call `name`; returns as `copy_series` does.

    Raises SeriesError (DATA) for what is not a series or has not ended, StoreError (NOT_STORED) as `copy_series`.
    """
    document = parse_series(content, name)
    if document.ended_at is None:
        raise SeriesError(
            f"{name}: the series {document.series_id} has not ended",
            remedy="copy it from the store that has it, with `flagbench results pull`, which keeps its parts",
        )
    keys, whole = there.get(document.series_id, set()), series_key(document.series_id)
    _check_same(target, document, keys)
    if whole in keys:
        return None
    if not target.blobs.put_if_absent(whole, content):
        raise _another(target, document)
    _remove_parts(target, document, keys)
    return target.blobs.location(whole)


def missing_records(series: SeriesDocument, keys: Mapping[str, set[str]]) -> list[Run]:
    """The runs of a series whose records are not among the `keys` of a store (`Store.keys`)."""
    places = ((run, place_of(series, run)) for run in series.runs)
    return [run for run, place in places if place is not None and place.key not in keys.get(place.record_id, ())]


def _check_same(target: Store, document: SeriesDocument, there: set[str]) -> None:
    """Raise StoreError unless what the target has of a series of that id is of this one."""
    if not there:
        return
    other = load_series(target, document.series_id, there)
    ended = document.ended_at is not None and other.ended_at is not None
    if other.token != document.token or (ended and other != document):
        raise _another(target, document)


def _remove_parts(target: Store, document: SeriesDocument, there: set[str]) -> None:
    """Remove the parts of a series that is there as a whole now."""
    if there:
        with suppress(StoreError):  # such as that of a key that may only write: they do no harm
            target.blobs.clear(series_prefix(document.series_id))


def _another(target: Store, document: SeriesDocument) -> StoreError:
    location = target.blobs.location(series_key(document.series_id))
    return StoreError(
        f"another series is already stored as {document.series_id} ({location})",
        remedy="keep the two in different stores: an id names one series, and stored ones never change",
    )
