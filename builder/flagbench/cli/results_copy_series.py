"""The series that `flagbench results push` and `pull` copy with their records."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress

from flagbench.cli.copies import Copies, Source
from flagbench.cli.series import named_series
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.results import matches
from flagbench.s3.ticket import Ticket
from flagbench.stores import Store, StoredRecord, StoreError
from flagbench.stores.blobs import ListingDenied
from flagbench.stores.series import load_series, place_of, series_keys
from flagbench.stores.series_copy import copy_series, missing_records, put_series
from flagbench.stores.series_document import SeriesDocument, is_series, parse_series

Keys = dict[str, set[str]]
Chosen = dict[str, SeriesDocument]
"""Series to copy, by id."""


def split_names(names: Sequence[str], store: Store) -> tuple[list[str], list[str]]:
    """The names of records, and the ids of the series that the others name. Raises FlagbenchError (usage)."""
    records: list[str] = []
    series: list[str] = []
    for name in names:
        found = named_series(name, store)
        (records if found is None else series).append(found or name)
    return records, series


def chosen_series(
    copies: Copies, store: Store, names: Sequence[str] | None, case: str | None, stack: str | None
) -> Chosen:
    """The series of those ids, or by default those of a case and a stack; one that cannot be read is a failure."""
    fits = matches(case, stack)
    found: Chosen = {}
    for series_id, keys in sorted(series_keys(store).items()):
        if names is not None and series_id not in names:
            continue
        try:
            series = load_series(store, series_id, keys)
        except FlagbenchError as error:
            copies.fail(f"series {series_id}", error)
            continue
        if names is not None or fits(series.request.case, series.request.stack):
            found[series_id] = series
    return found


def records_of(store: Store, series: Iterable[SeriesDocument]) -> Iterator[StoredRecord]:
    """The records of series, as the store lists them."""
    for each in series:
        keys = {place.key for run in each.runs if (place := place_of(each, run)) is not None}
        yield from (e for e in store.list(each.request.case, each.request.stack) if e.blob.key in keys)


def pull_series(
    copies: Copies, chosen: Chosen, source: Store, target: Store, had: Collection[str], known: Keys
) -> None:
    """Copy series whose records were copied before.

    Args:
        had: the keys of the records that the source has.
        known: those of the target, as `Store.put` keeps them.
    """
    if not chosen:
        return
    here, there = series_keys(source), _keys(target)
    for series_id, series in chosen.items():
        try:
            missing = missing_records(series, known)
            for run in missing:
                place = place_of(series, run)
                if place is not None and place.key in had:
                    raise StoreError(
                        f"the series {series_id} was not copied: its record {run.record_id} was not",
                        remedy="copy the record first; the line above says what keeps it",
                    )
            location = copy_series(source, target, series, here.get(series_id, set()), there.get(series_id, set()))
            copies.tell_series(series_id, location, missing)
        except FlagbenchError as error:
            copies.fail(f"series {series_id}", error)


def push_series(copies: Copies, sources: Iterable[Source], target: Store) -> None:
    """Store series from files; their records are in the target, or said to be missing."""
    known: Keys | None = None
    there: Keys = {}
    for name, content, _ in sources:
        assert isinstance(content, bytes)
        try:
            if known is None:
                known, there = target.keys(), _keys(target)
            series = parse_series(content, name)
            location = put_series(target, content, name, there)
            copies.tell_series(series.series_id, location, missing_records(series, known))
        except FlagbenchError as error:
            copies.fail(name, error)


def without_series(sources: Iterable[Source], series: list[Source]) -> Iterator[Source]:
    """The records among sources; what is a series is added to `series`."""
    for source in sources:
        if isinstance(source[1], bytes) and is_series(source[1]):
            series.append(source)
        else:
            yield source


def refuse_ticket(copies: Copies, series: Iterable[Source], ticket: Ticket) -> None:
    """Report that a ticket takes no series."""
    for name, _, _ in series:
        copies.fail(
            name,
            FlagbenchError(
                f"{name} is a series, and a ticket takes what the run {ticket.run_id} left",
                remedy="store it where you have keys: `flagbench results push FILE --store URL`",
                code=ExitCode.NOT_STORED,
            ),
        )


def _keys(store: Store) -> Keys:
    """As `series_keys`; none where the key may not list, so that each put says what is there."""
    with suppress(ListingDenied):
        return series_keys(store)
    return {}
