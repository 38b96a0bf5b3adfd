"""Finds the records and series that the arguments of a command name.

A record or a series is named by its file, by `-` (standard input), by its id in a store or the beginning of the id,
or by `last` or `last~N`, which mean the newest record and the Nth one before it.
"""

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

SERIES_HELP = "Or a series: its id or the beginning of it, its file, or last where the newest record is of it."

_LAST = re.compile(r"last(~([0-9]{0,6}))?")
"""Matches `last` and `last~N`: group 1 is `~N`, group 2 the digits."""
_BEGINNING_OF_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,159}")
"""Matches the id of a record, and every beginning of one."""
_SERIES_ID = re.compile("[0-9A-Za-z][0-9A-Za-z_-]*")
_MOST_CANDIDATES = 10
"""Most ids that an error lists if the beginning of an id matches several."""
_REMEDY_NO_RECORD = "run a case first (`flagbench run distilbert:cpu --preset tiny`)"


def load_records(names: Sequence[str], store_url: str | None) -> list[Record]:
    """Return the records that names of any kind mean, in their order.

    A name that exists as a path, has a slash or ends in .json is a path. Raises FlagbenchError if a record does not
    exist or is not valid, and (USAGE) if the beginning of an id matches several or `-` is named twice.
    """
    require_one_stdin(names)
    return [_load_record(name, store_url) for name in names]


def require_one_stdin(names: Sequence[str]) -> None:
    """Raise FlagbenchError (USAGE) if `-` is named twice: standard input can be read once."""
    if names.count("-") > 1:
        raise FlagbenchError(
            "standard input (-) is named more than once", remedy="write the records to files and name those"
        )


def _load_record(name: str, store_url: str | None) -> Record:
    if is_path(name):
        return read_record(_file_of(name))
    store = open_store(store_url)
    return read_record(stored_record(name, store))


def _file_of(name: str) -> Path | None:
    """Return the file that a path names; None for standard input (`-`)."""
    if name == "-":
        return None
    return Path(name)


def is_path(name: str) -> bool:
    """Return whether a name means a file or standard input, and not a stored record."""
    if _LAST.fullmatch(name):
        return False
    return name == "-" or "/" in name or name.endswith(".json") or os.path.lexists(name)


def stored_record(name: str, store: Store) -> bytes:
    """Return the bytes of a stored record by `last`, `last~N`, its id or the beginning of its id.

    Raises StoreError (USAGE) if the name is not an id or the beginning of several, and StoreError (DATA) if the
    record does not exist or is damaged.
    """
    last = _LAST.fullmatch(name)
    if last is not None:
        return store.read(_find_newest(store, last))
    return store.get(_find_id(name, store))


def listed_records(names: Iterable[str], store: Store) -> list[StoredRecord]:
    """Return the listed records of those names, also damaged ones. Raises StoreError as `stored_record` does.

    An id has more than one entry if copies of its record were put into other folders.
    """
    by_location: dict[str, StoredRecord] = {}  # a record that is named twice is listed once
    for name in names:
        for record in _listed_records_of(name, store):
            by_location[record.location] = record
    return list(by_location.values())


def _listed_records_of(name: str, store: Store) -> list[StoredRecord]:
    last = _LAST.fullmatch(name)
    if last is not None:
        return [_find_newest(store, last)]
    record_id = _find_id(name, store)
    records = [record for record in store.list_records() if record.record_id == record_id]
    if not records:
        store.get(record_id)  # raises the error for an id that does not exist
    return records


def _find_id(name: str, store: Store) -> str:
    """Return the stored id that equals `name`, begins with it, or ends with it as a short id.

    A name that has the form of a whole id is returned even if no record has it: `Store.get` then reports that.

    Raises StoreError (USAGE) if the name is not an id or matches several, and StoreError (DATA) if it matches none.
    """
    if not _BEGINNING_OF_ID.fullmatch(name):
        return check_record_id(name)
    record_ids = store.find(name)
    if name in record_ids:
        return name
    if not record_ids and re.fullmatch(RECORD_ID, name):
        return name
    if not record_ids:
        raise _no_record(name, store)
    if len(record_ids) == 1:
        return record_ids[0]
    candidates = "".join(f"\n  {record_id}" for record_id in record_ids[:_MOST_CANDIDATES])
    if len(record_ids) > _MOST_CANDIDATES:
        candidates += f"\n  and {len(record_ids) - _MOST_CANDIDATES} more"
    raise StoreError(
        f"'{name}' fits {len(record_ids)} ids:{candidates}",
        remedy="give more of the id",
        code=ExitCode.USAGE,
    )


def _no_record(name: str, store: Store) -> StoreError:
    """Return the error for a name that matches no record. Raises StoreError (DATA) if the store does not exist."""
    series_id = named_series(name, store)
    if series_id is not None:
        return StoreError(
            f"{series_id} is a series, and a record is needed",
            remedy=f"name one of its records: `flagbench results series {series_id}` lists them",
            code=ExitCode.USAGE,
        )
    _check_exists(store)
    similar_names = hint(name, ["last", *store.find("")])
    return StoreError(
        f"no record in {store.url} has an id that begins with '{name}'",
        remedy=f"{similar_names}`flagbench results ls` shows the stored records; --store names another store",
        code=ExitCode.DATA,
    )


def _check_exists(store: Store) -> None:
    """Raise StoreError (DATA) for a store that does not exist."""
    if store.missing:
        remedy = f"{_REMEDY_NO_RECORD}, or correct --store"
        raise StoreError(f"the store {store.url} does not exist", remedy=remedy, code=ExitCode.DATA)


def _find_newest(store: Store, last: re.Match[str]) -> StoredRecord:
    """Return the record that a match of _LAST means.

    Files that the store did not write are skipped with a note on stderr. Runs that got the wrong hardware are skipped
    without one: they measured nothing.
    """
    wanted = 0  # `last`: no record is newer
    if last[1] is not None:
        wanted = int(last[2] or 1)  # `last~2`, or `last~`, which means `last~1`
    newer = 0
    for record in store.list_records():
        if record.problem is not None:
            note(record.location, record.problem)
            continue
        if record.summary is not None and record.summary.exit_code == ExitCode.WRONG_HARDWARE:
            continue
        if newer == wanted:
            return record
        newer += 1
    if not newer:
        _check_exists(store)
        raise StoreError(
            f"the store {store.url} holds no record",
            remedy=f"{_REMEDY_NO_RECORD}, or name the file of a record",
            code=ExitCode.DATA,
        )
    remedy = "name it last"
    if newer > 1:
        remedy = f"name one of last to last~{newer - 1}"
    raise StoreError(f"the store {store.url} holds only {newer} record(s)", remedy=remedy, code=ExitCode.DATA)


def note(location: str, problem: str) -> None:
    """Print to stderr why a file in the store is not listed as a record."""
    print(visible(f"note: {location}: {problem}"), file=sys.stderr)


def load_runs(names: Sequence[str], store_url: str | None) -> Runs:
    """Return the records and series that names of any kind mean.

    `last` means the newest record or, if that is a run of a series, the whole series. Raises FlagbenchError as
    `load_records` does.
    """
    require_one_stdin(names)
    runs = Runs()
    for name in names:
        run = _load_run(name, store_url)
        if isinstance(run, Series):
            runs.series.append(run)
            runs.records += run.records
        else:
            runs.records.append(run)
    return runs


def _load_run(name: str, store_url: str | None) -> Record | Series:
    """Return the record or the series that a name means; the records of a series are read from the store."""
    if is_path(name):
        content, title = read_content(_file_of(name))
        if not is_series(content):
            return read_record(content, title)
        store = open_store(store_url)
        return check_series(store, parse_series(content, title))
    store = open_store(store_url)
    if name == "last":
        record = read_record(stored_record(name, store))
        series = series_of(store, record)
        if series is None:
            return record
        return check_series(store, series)
    series_id = named_series(name, store)
    if series_id is None:
        return read_record(stored_record(name, store))
    return read_series(store, series_id)


def named_series(name: str, store: Store) -> str | None:
    """Return the id of the series that `name` is the id of, or the beginning of the id; None if no series matches.

    The beginning of a record's id means the record: for it, the result is None, too.

    Raises FlagbenchError (USAGE) for the beginning of several ids.
    """
    if name == "last" or not _SERIES_ID.fullmatch(name):
        return None
    ids = _listed_series(store)
    if name in ids:
        return name
    matching = [series_id for series_id in ids if series_id.startswith(name)]
    if not matching or store.find(name):
        return None
    if len(matching) > 1:
        raise FlagbenchError(
            f"'{brief(name)}' is the beginning of {len(matching)} series: {', '.join(matching[:_MOST_CANDIDATES])}",
            remedy="give more of the id",
        )
    return matching[0]


def _listed_series(store: Store) -> list[str]:
    """Return the ids of the store's series; it is empty if the store cannot be listed."""
    with suppress(StoreError):  # such as with a key that may only read objects: a record can still be found by its id
        return series_ids(store)
    return []
