"""Which record an argument names: a file, standard input, an id or its beginning, `last` or `last~N`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import typer

from flagbench.errors import FlagbenchError
from flagbench.records.model import Record
from flagbench.records.read import read_record
from flagbench.records.scalars import RECORD_ID
from flagbench.records.store import Store, StoredRecord, StoreError, open_store
from flagbench.records.store.layout import check_record_id
from flagbench.terminal import visible
from flagbench_core.exit_codes import ExitCode

STORED_HELP = "The id of a stored record or its beginning, last for the newest one, last~1 for the one before it."
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
    """The id that `name` is or is the beginning of.

    Raises StoreError: usage for what is not an id or fits several, data for a beginning that fits none.
    """
    if not _PREFIX.fullmatch(name):
        return check_record_id(name)
    found = store.find(name)
    if name in found or (not found and re.fullmatch(RECORD_ID, name)):
        return name
    if not found:
        raise StoreError(
            f"no record in {store.url} has an id that begins with '{name}'",
            remedy="`flagbench results ls` shows the stored records; --store names another store",
            code=ExitCode.DATA,
        )
    if len(found) == 1:
        return found[0]
    more = f"\n  and {len(found) - _CANDIDATES} more" if len(found) > _CANDIDATES else ""
    listed = "".join(f"\n  {record_id}" for record_id in found[:_CANDIDATES])
    raise StoreError(
        f"'{name}' is the beginning of {len(found)} ids:{listed}{more}",
        remedy="give more of the id",
        code=ExitCode.USAGE,
    )


def _newest(store: Store, last: re.Match[str]) -> StoredRecord:
    """The record that a match of _LAST means. What was never stored is skipped, with a note on stderr."""
    back = 0 if last[1] is None else int(last[2] or 1)
    count = 0
    for entry in store.list():
        if entry.problem is not None:
            note(entry.location, entry.problem)
        elif count == back:
            return entry
        else:
            count += 1
    if count:
        problem = f"the store {store.url} holds only {count} record(s)"
        remedy = f"name one of last to last~{count - 1}" if count > 1 else "name it last"
    else:
        problem = f"the store {store.url} holds no record"
        remedy = "run a case first (`flagbench run distilbert:cpu --preset tiny`), or name the file of a record"
    raise StoreError(problem, remedy=remedy, code=ExitCode.DATA)


def note(location: str, problem: str) -> None:
    """Say on stderr why a file in the store is not listed as a record."""
    typer.echo(visible(f"note: {location}: {problem}"), err=True)
