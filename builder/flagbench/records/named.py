"""What an argument names: a record or a series, by its file, `-`, its id or its beginning, `last` or `last~N`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from flagbench.console.terminal import brief, visible
from flagbench.errors import FlagbenchError
from flagbench.records.blobs import StoreError
from flagbench.records.model import Record
from flagbench.records.read import read_content, read_record
from flagbench.records.runs_and_series import Runs
from flagbench.records.scalars import RECORD_ID
from flagbench.records.series import Series, check_series, read_series, series_ids, series_of
from flagbench.records.series_document import is_series, parse_series
from flagbench.records.store import Store, StoredRecord, open_store
from flagbench.records.store_keys import check_record_id
from flagbench.schema import hint
from flagbench_core.exit_codes import ExitCode

STORED_HELP = (
    "The id of a stored record, its beginning or the 8 digits at its end, "
    "last for the newest one, last~1 for the one before it."
)
RECORD_HELP = f"A file, - for standard input, or a stored record: {STORED_HELP[0].lower()}{STORED_HELP[1:]}"

_LAST = re.compile(r"last(~([0-9]{0,6}))?")
_PREFIX = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,159}")
_CANDIDATES = 10
"""How many ids an error lists if the beginning of an id matches several."""


def load_records(names: Sequence[str], store_url: str | None) -> list[Record]:
    """The records named by `-`, `last`, `last~N`, a file, an id in the store, or the beginning of one.

    A name that exists as a path, has a slash or ends in .json is a path. Raises FlagbenchError where there is no such
    record, where it is not valid, and (usage) where the beginning of an id fits several or `-` is named twice.
    """
    require_one_stdin(names)
    return [_load(name, store_url) for name in names]


def require_one_stdin(names: Sequence[str]) -> None:
    """Raise FlagbenchError (usage) if `-` is named twice: standard input can be read once."""
    if names.count("-") > 1:
        raise FlagbenchError(
            "standard input (-) is named more than once", remedy="write the records to files and name those"
        )


def _load(name: str, store_url: str | None) -> Record:
    if is_path(name):
        return read_record(None if name == "-" else Path(name))
    return read_record(stored_record(name, open_store(store_url)))


def is_path(name: str) -> bool:
    """Whether a name is that of a file or `-`, and not of a stored record."""
    named = name == "-" or "/" in name or name.endswith(".json") or os.path.lexists(name)
    return named and not _LAST.fullmatch(name)


def stored_record(name: str, store: Store) -> bytes:
    """The bytes of a stored record by `last`, `last~N`, its id or the beginning of its id.

    Raises StoreError: usage for what is not an id or the beginning of several, data for what is missing or
    is damaged.
    """
    if last := _LAST.fullmatch(name):
        return store.read(_newest(store, last))
    return store.get(_stored_id(name, store))


def stored_entries(names: Iterable[str], store: Store) -> list[StoredRecord]:
    """The listed records of those names, damaged ones too. Raises StoreError as `stored_record` does.

    An id has more than one entry where copies were put into other folders.
    """
    entries: dict[str, StoredRecord] = {}
    for name in names:
        if last := _LAST.fullmatch(name):
            found = [_newest(store, last)]
        else:
            record_id = _stored_id(name, store)
            found = [entry for entry in store.list() if entry.record_id == record_id]
            if not found:
                store.get(record_id)  # which says that there is none
        entries.update((entry.location, entry) for entry in found)
    return list(entries.values())


def _stored_id(name: str, store: Store) -> str:
    """The id that `name` is, is the beginning of, or as a short id is the end of.

    Raises StoreError: usage for what is not an id or fits several, data for a beginning that fits none.
    """
    if not _PREFIX.fullmatch(name):
        return check_record_id(name)
    found = store.find(name)
    if name in found or (not found and re.fullmatch(RECORD_ID, name)):
        return name
    if not found:
        if series_id := named_series(name, store):
            raise StoreError(
                f"{series_id} is a series, and a record is needed",
                remedy=f"name one of its records: `flagbench results series {series_id}` lists them",
                code=ExitCode.USAGE,
            )
        _check_exists(store)
        raise StoreError(
            f"no record in {store.url} has an id that begins with '{name}'",
            remedy=hint(name, ["last", *store.find("")])
            + "`flagbench results ls` shows the stored records; --store names another store",
            code=ExitCode.DATA,
        )
    if len(found) == 1:
        return found[0]
    more = f"\n  and {len(found) - _CANDIDATES} more" if len(found) > _CANDIDATES else ""
    listed = "".join(f"\n  {record_id}" for record_id in found[:_CANDIDATES])
    raise StoreError(
        f"'{name}' fits {len(found)} ids:{listed}{more}",
        remedy="give more of the id",
        code=ExitCode.USAGE,
    )


def _check_exists(store: Store) -> None:
    """Raise StoreError (data) for a store that does not exist."""
    if store.missing:
        remedy = "run a case first (`flagbench run distilbert:cpu --preset tiny`), or correct --store"
        raise StoreError(f"the store {store.url} does not exist", remedy=remedy, code=ExitCode.DATA)


def _newest(store: Store, last: re.Match[str]) -> StoredRecord:
    """The record that a match of _LAST means.

    What was never stored is skipped, with a note on stderr, and so are runs that found the wrong hardware.
    """
    back = 0 if last[1] is None else int(last[2] or 1)
    count = 0
    for entry in store.list():
        if entry.problem is not None:
            note(entry.location, entry.problem)
        elif entry.summary is not None and entry.summary.exit_code == ExitCode.WRONG_HARDWARE:
            continue
        elif count == back:
            return entry
        else:
            count += 1
    if count:
        problem = f"the store {store.url} holds only {count} record(s)"
        remedy = f"name one of last to last~{count - 1}" if count > 1 else "name it last"
    else:
        _check_exists(store)
        problem = f"the store {store.url} holds no record"
        remedy = "run a case first (`flagbench run distilbert:cpu --preset tiny`), or name the file of a record"
    raise StoreError(problem, remedy=remedy, code=ExitCode.DATA)


def note(location: str, problem: str) -> None:
    """Say on stderr why a file in the store is not listed as a record."""
    print(visible(f"note: {location}: {problem}"), file=sys.stderr)


SERIES_HELP = "Or a series: its id or the beginning of it, its file, or last where the newest record is of it."
_SERIES_ID = re.compile("[0-9A-Za-z][0-9A-Za-z_-]*")


def load_runs(names: Sequence[str], store_url: str | None) -> Runs:
    """The records and series named by `-`, `last`, a file, an id in the store, or the beginning of one.

    `last` is the newest record; where that is a run of a series, the whole series. Raises FlagbenchError as
    `load_records` does.
    """
    require_one_stdin(names)
    runs = Runs()
    for name in names:
        found = _load_run(name, store_url)
        if isinstance(found, Series):
            runs.series.append(found)
            runs.records += found.records
        else:
            runs.records.append(found)
    return runs


def _load_run(name: str, store_url: str | None) -> Record | Series:
    if is_path(name):
        content, called = read_content(None if name == "-" else Path(name))
        if is_series(content):
            return check_series(open_store(store_url), parse_series(content, called))
        return read_record(content, called)
    store = open_store(store_url)
    if name == "last":
        record = read_record(stored_record(name, store))
        series = series_of(store, record)
        return record if series is None else check_series(store, series)
    series_id = named_series(name, store)
    return read_record(stored_record(name, store)) if series_id is None else read_series(store, series_id)


def named_series(name: str, store: Store) -> str | None:
    """The id of the series that a name is or, where no record has such an id, is the beginning of; else None.

    Raises FlagbenchError (usage) for the beginning of several.
    """
    ids = _ids(store) if _SERIES_ID.fullmatch(name) and name != "last" else []
    if name in ids:
        return name
    found = [series_id for series_id in ids if series_id.startswith(name)]
    return _only(name, found) if found and not store.find(name) else None


def _ids(store: Store) -> list[str]:
    """The ids of the store's series; none where its key may not list."""
    with suppress(StoreError):
        return series_ids(store)
    return []


def _only(beginning: str, found: Iterable[str]) -> str:
    ids = [*found]
    if len(ids) == 1:
        return ids[0]
    raise FlagbenchError(
        f"'{brief(beginning)}' is the beginning of {len(ids)} series: {', '.join(ids[:10])}",
        remedy="give more of the id",
    )
