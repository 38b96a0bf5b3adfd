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
from flagbench.results import select
from flagbench.stores import Store, StoredRecord, open_store, unsent

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
    """Store records: those that `flagbench run` could not store when it ended with code 14, or files of --out.

    A record that is there already is no error, if it has the same bytes. One that fails stays where it is; the others
    are stored. --json prints {"store": URL, "stored": [record id], "failed": [{name, error}]}.
    """
    target, waiting = open_store(store), unsent()
    sources = map(_file, files) if files else _entries(waiting, waiting.list(), remove=True)
    _copy(sources, target, json=json, nothing="no run left a record that could not be stored")


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

    --json prints {"store": URL of the target, "stored": [record id], "failed": [{name, error}]}.
    """
    source, target = open_store(store), open_store(to, own=True)
    if source.url == target.url:
        raise FlagbenchError(
            f"{source.url} is both source and target", remedy="name another store with --store or --to"
        )
    chosen = stored_entries(records, source) if records else select(source, case=case, stack=stack)
    there = target.keys()
    missing = [entry for entry in chosen if entry.blob.key not in there.get(entry.record_id, ())]
    _copy(_entries(source, missing), target, json=json, nothing=f"{target.url} has all of them")


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


def _copy(sources: Iterable[Source], target: Store, *, json: bool, nothing: str) -> None:
    """Copy all that can be copied. Every failure is reported; the first one decides the exit code."""
    stored: list[str] = []
    failures: list[tuple[str, FlagbenchError]] = []
    known = target.keys()
    for name, content, done in sources:
        try:
            if isinstance(content, FlagbenchError):
                raise content
            kept = target.put(content, known=known)
            stored.append(kept.record_id)
            if not json:
                typer.echo(f"record {kept.record_id} kept in {kept.location}", err=True)
            done()
        except FlagbenchError as error:
            print_error(error.message, error.remedy)
            failures.append((name, error))
    if json:
        failed = [{"name": name, "error": error.message} for name, error in failures]
        echo_json({"store": target.url, "stored": stored, "failed": failed})
    elif not stored and not failures:
        typer.echo(nothing, err=True)
    else:
        typer.echo(f"{len(stored)} stored in {target.url}, {len(failures)} failed", err=True)
    if failures:
        raise typer.Exit(int(failures[0][1].code))
