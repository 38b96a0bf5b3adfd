"""`flagbench results push` and `pull`: records from one store to another, byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from flagbench.cli import complete
from flagbench.cli.options import JsonOption, StoreOption
from flagbench.cli.output import echo_json, print_error
from flagbench.cli.records import stored_entries
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.files import read_file, reason
from flagbench.record.read import MAX_BYTES
from flagbench.redaction import redact
from flagbench.results import select
from flagbench.stores import Store, StoredRecord, open_store, waiting
from flagbench.stores.open import is_waiting_room

Source = tuple[str, "bytes | FlagbenchError", Callable[[], None]]
"""A record's name, its bytes or why it has none, and what is done once it is stored."""


def push(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE...]", help="Records; by default those that a run could not store."),
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Store records: those that `flagbench run` could not store, each where it was meant for, or files of --out.

    --store names another place for all of them. A record that is there already is no error, if it has the same bytes.
    One that fails stays where it is; the others are stored.

    --json prints {"stored": [{record_id, location}], "failed": [{name, error}]}.
    """
    copies = Copies(json)
    if files:
        copies.copy(map(_file, files), _target(store))
    else:
        for address, place in waiting():
            if left := [*place.list()]:
                try:
                    target = _target(store or address)
                except FlagbenchError as error:
                    copies.fail(address, error)
                    continue
                copies.copy(_entries(place, left, remove=True), target)
    copies.end("no run left a record that could not be stored")


def pull(
    records: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECORD...]", autocompletion=complete.records, help="Ids or beginnings of ids; by default all."
        ),
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="URL", help="The store to copy to; by default the user's own folder.")
    ] = None,
    case: Annotated[str | None, typer.Option(help="Only this case.")] = None,
    stack: Annotated[str | None, typer.Option(help="Only this stack, by name or alias.")] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Copy records from --store to another store, each checked on the way; those that are there already are not read.

    --json prints {"stored": [{record_id, location}], "failed": [{name, error}]}.
    """
    source, target = open_store(store), _target(to, own=True)
    if source.url == target.url:
        raise FlagbenchError(
            f"{source.url} is both source and target", remedy="name another store with --store or --to"
        )
    chosen = stored_entries(records, source) if records else select(source, case=case, stack=stack)
    known = target.keys()
    missing = [entry for entry in chosen if entry.blob.key not in known.get(entry.record_id, ())]
    copies = Copies(json)
    copies.copy(_entries(source, missing), target, known)
    copies.end(f"{target.url} has all of them")


def _target(url: str | None, *, own: bool = False) -> Store:
    store = open_store(url, own=own)
    if is_waiting_room(store):
        raise FlagbenchError(
            f"{store.url} is where records wait to be stored", remedy="name the store they are meant for with --store"
        )
    return store


def _entries(store: Store, entries: Iterable[StoredRecord], *, remove: bool = False) -> Iterator[Source]:
    for entry, content in store.read_all(entries):
        yield entry.record_id, content, partial(store.remove, entry) if remove else lambda: None


def _file(file: Path) -> Source:
    content: bytes | FlagbenchError
    try:
        content = read_file(file, MAX_BYTES)
    except OSError as error:
        content = FlagbenchError(
            f"{file} cannot be read: {reason(error)}",
            remedy="name a record: a file of a run's --out folder",
            code=ExitCode.DATA,
        )
    return str(file), content, lambda: None


class Copies:
    """What was copied and what was not. Every failure is reported; the first one decides the exit code."""

    def __init__(self, json: bool) -> None:
        self.json = json
        self.stored: list[StoredRecord] = []
        self.failures: list[tuple[str, FlagbenchError]] = []

    def copy(self, sources: Iterable[Source], target: Store, known: dict[str, set[str]] | None = None) -> None:
        """Copy all that can be copied; `known` as Store.put has it."""
        for name, content, done in sources:
            try:
                if isinstance(content, FlagbenchError):
                    raise content
                known = target.keys() if known is None else known
                kept = target.put(content, known=known)
                self.stored.append(kept)
                if not self.json:
                    typer.echo(f"record {kept.record_id} kept in {kept.location}", err=True)
                done()
            except FlagbenchError as error:
                self.fail(name, error)

    def fail(self, name: str, error: FlagbenchError) -> None:
        """Report what was not copied."""
        print_error(error.message, error.remedy)
        self.failures.append((name, error))

    def end(self, nothing: str) -> None:
        """Print the answer of --json, or how many there were. Raises Exit where one failed."""
        if self.json:
            stored = [{"record_id": kept.record_id, "location": kept.location} for kept in self.stored]
            failed = [{"name": name, "error": redact(error.message)} for name, error in self.failures]
            echo_json({"stored": stored, "failed": failed})
        elif not self.stored and not self.failures:
            typer.echo(nothing, err=True)
        else:
            typer.echo(f"{len(self.stored)} stored, {len(self.failures)} failed", err=True)
        if self.failures:
            raise typer.Exit(int(self.failures[0][1].code))
