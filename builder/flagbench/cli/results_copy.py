"""`flagbench results push` and `pull`: records, series and bundles from one store to another, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from platformdirs import user_cache_path

from flagbench.cli import complete
from flagbench.cli.copies import Copies, Source
from flagbench.cli.options import JsonOption, StoreOption
from flagbench.cli.records import stored_entries
from flagbench.cli.results_copy_series import (
    chosen_series,
    pull_series,
    push_series,
    records_of,
    refuse_ticket,
    split_names,
    without_series,
)
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.files import read_file, reason
from flagbench.results import select
from flagbench.s3.ticket import MEANT_FOR, Ticket
from flagbench.stores import Bundle, FolderBlobs, Store, StoredRecord, StoreError, open_store, waiting
from flagbench.stores.series_document import MAX_BYTES as SERIES_BYTES
from flagbench.stores.ticket import read_ticket
from flagbench.stores.waiting import close_room, is_waiting_room

_PULLING = ".pulling"
"""The folder of bundles that are on their way."""


def push(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[OUT|FILE...]",
            help="Folders of --out, records, or series; by default what runs of this user could not store.",
        ),
    ] = None,
    ticket: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Upload what waits for this ticket with it.")
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Store what runs could not store, each where it was meant for: bundles, then records. Or files of --out.

    --store names another place for all of them. What is there already is no error, if it has the same bytes. What
    fails stays where it is; the others are stored. A series comes after the records; those that it names and that are
    not there are listed.

    --json prints {"stored": [{record_id, location}], "bundles": [{record_id, location}],
    "series": [{series_id, location, missing}], "failed": [{name, error}]}; location is null where a ticket leads.
    """
    copies = Copies(json)
    if ticket is not None and store is not None:
        raise FlagbenchError("--ticket and --store contradict each other", remedy="give one of them")
    granted = None if ticket is None else read_ticket(ticket)
    folders = [file for file in files or () if file.is_dir()]
    rooms = [room for folder in folders for room in waiting(folder)] if files else [*waiting()]
    records = [*_records(files or ())]  # before what waits is stored: then nothing waits any more
    for address, place in rooms:
        _push_room(copies, address, place, store, granted, of_user=not files)
        close_room(place)
    if records:
        series: list[Source] = []
        sources = without_series(map(_file, records), series)
        if granted is None:
            target = _target(store)
            copies.copy(sources, target)
            push_series(copies, series, target)
        else:
            copies.upload(sources, granted)
            refuse_ticket(copies, series, granted)
    copies.end("nothing is waiting to be stored")


def pull(
    records: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECORD|SERIES...]",
            autocompletion=complete.runs,
            help="Ids or beginnings of ids; by default all.",
        ),
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="URL", help="The store to copy to; by default the user's own folder.")
    ] = None,
    case: Annotated[str | None, typer.Option(help="Only this case.")] = None,
    stack: Annotated[str | None, typer.Option(help="Only this stack, by name or alias.")] = None,
    bundles: Annotated[bool, typer.Option("--bundles", help="Copy their bundles, too.")] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Copy records from --store to another store, each checked on the way; those that are there already are not read.

    A series is copied with its records; those that it names and that --store does not have are listed.

    --json prints {"stored": [{record_id, location}], "bundles": [{record_id, location}],
    "series": [{series_id, location, missing}], "failed": [{name, error}]}.
    """
    source, target = open_store(store), _target(to, own=True)
    if source.url == target.url:
        raise FlagbenchError(
            f"{source.url} is both source and target", remedy="name another store with --store or --to"
        )
    copies = Copies(json)
    names, ids = split_names(records or (), source)
    series = chosen_series(copies, source, ids if records else None, case, stack)
    if records:
        entries = [*stored_entries(names, source), *records_of(source, series.values())]
    else:
        entries = [*select(source, case=case, stack=stack)]
    chosen = [*{entry.location: entry for entry in entries}.values()]
    known = target.keys()
    missing = [entry for entry in chosen if entry.blob.key not in known.get(entry.record_id, ())]
    if bundles:
        _pull_bundles(copies, chosen, source, target)
    copies.copy(_entries(source, missing), target, known)
    pull_series(copies, series, source, target, {entry.blob.key for entry in chosen}, known)
    copies.end(f"{target.url} has all of them")


def _push_room(
    copies: Copies, address: str, room: Store, store: str | None, ticket: Ticket | None, *, of_user: bool
) -> None:
    """Store what waits in a room: bundles first. `of_user`: whether it is in the user's own folder."""
    left, bundles = [*room.list()], [each for some in room.bundles.all().values() for each in some]
    if not left and not bundles:
        return
    if ticket is not None:
        if address == ticket.meant_for:
            copies.upload_bundles(map(partial(_waiting_bundle, room), bundles), ticket)
            copies.upload(_entries(room, left, remove=True), ticket)
        return
    if store is None and address.startswith(MEANT_FOR):
        run_id = address.removeprefix(MEANT_FOR)
        copies.fail(
            address,
            FlagbenchError(
                f"what the run {run_id} left waits for its ticket",
                remedy="give it with --ticket FILE, or name a store with --store",
                code=ExitCode.NOT_STORED,
            ),
        )
        return
    try:
        if store is None and not of_user and not address.lower().startswith("s3:"):
            # Such a folder may come from another machine, whose runs let only uploads wait.
            raise FlagbenchError(
                f"what waits there is meant for {address!r}, which is not a bucket",
                remedy="name the store with --store",
                code=ExitCode.NOT_STORED,
            )
        if store is None and not address:
            raise FlagbenchError(
                "what waits there does not say where it is meant for",
                remedy="name the store with --store",
                code=ExitCode.NOT_STORED,
            )
        target = _target(store or address)
    except FlagbenchError as error:
        copies.fail(address, error)
        return
    for bundle in bundles:
        _, path, done = _waiting_bundle(room, bundle)
        if copies.copy_bundle(bundle, path, target):
            done()
    copies.copy(_entries(room, left, remove=True), target)


def _waiting_bundle(room: Store, bundle: Bundle) -> tuple[Bundle, Path, partial[None]]:
    """A bundle that waits, its file, and what is done once it is stored."""
    assert isinstance(room.blobs, FolderBlobs)
    return bundle, room.blobs.root / bundle.place.key, partial(room.bundles.remove, bundle)


def _pull_bundles(copies: Copies, chosen: Iterable[StoredRecord], source: Store, target: Store) -> None:
    """Copy the bundles of those records that the target lacks: one listing of each store for all of them."""
    there, here = source.bundles.all(), target.bundles.all()
    for record_id in dict.fromkeys(entry.record_id for entry in chosen):
        known = {bundle.place for bundle in here.get(record_id, ())}
        for bundle in there.get(record_id, ()):
            if bundle.place in known:
                continue
            try:
                # Always the same folder: a pull that was killed is resumed by the next one.
                path = _near(target) / _PULLING / record_id / bundle.name
                path.parent.mkdir(parents=True, exist_ok=True)
                source.bundles.get(bundle, path)
                if copies.copy_bundle(bundle, path, target):
                    path.unlink(missing_ok=True)
                with suppress(OSError):  # another bundle is on its way
                    path.parent.rmdir()
                    path.parent.parent.rmdir()
            except FlagbenchError as error:
                copies.fail(bundle.location, error)
            except OSError as error:
                copies.fail(bundle.location, _no_room(bundle, error))


def _no_room(bundle: Bundle, error: OSError) -> StoreError:
    return StoreError(
        f"{bundle.name} was not copied: {reason(error)}",
        remedy=f"make the target's folder writable, with room for {bundle.size:,} bytes; XDG_CACHE_HOME for a bucket",
    )


def _near(target: Store) -> Path:
    """A folder with room for what is on its way into a store: the store's own, or the user's cache for a bucket."""
    return target.blobs.root if isinstance(target.blobs, FolderBlobs) else user_cache_path("flagbench")


def _target(url: str | None, *, own: bool = False) -> Store:
    store = open_store(url, own=own)
    if is_waiting_room(store):
        raise FlagbenchError(
            f"{store.url} is where records wait to be stored", remedy="name the store they are meant for with --store"
        )
    return store


def _entries(store: Store, entries: Iterable[StoredRecord], *, remove: bool = False) -> Iterator[Source]:
    for entry, content in store.read_all(entries):
        if remove and isinstance(content, FlagbenchError) and not store.keys().get(entry.record_id):
            continue  # another process has stored it meanwhile
        yield entry.record_id, content, partial(store.remove, entry) if remove else lambda: None


def _records(files: Iterable[Path]) -> Iterator[Path]:
    """The records that are named: files, and those of a folder in which nothing waits.

    A folder without records is returned itself, and is an error, unless a run was killed there before it kept any.
    """
    for file in files:
        rooms = [*waiting(file)] if file.is_dir() else []
        if not file.is_dir():
            yield file
        elif not any(_holds(place) for _, place in rooms):
            found: list[Path] = []
            with suppress(OSError):
                found = sorted(file.glob("*.json"))
            yield from found or ([] if rooms else [file])


def _holds(room: Store) -> bool:
    """Whether something waits in a room."""
    return bool(room.keys() or room.bundles.all())


def _file(file: Path) -> Source:
    content: bytes | FlagbenchError
    try:
        content = read_file(file, SERIES_BYTES)  # more than a record, which has a limit of its own
    except OSError as error:
        content = FlagbenchError(
            f"{file} cannot be read: {reason(error)}",
            remedy="name a record, a file of a run's --out folder, or a series",
            code=ExitCode.DATA,
        )
    return str(file), content, lambda: None
