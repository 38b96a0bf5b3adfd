"""`results push`: what runs could not store is sent where it was meant for, and files of records where one says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flagbench.errors import FlagbenchError
from flagbench.records.store import Store, open_store
from flagbench.records.waiting import Waiting, record_file, unsent_folder, waiting
from flagbench_core.exit_codes import ExitCode


@dataclass(frozen=True)
class Sent:
    """A record or a bundle that was stored."""

    record_id: str
    bundle: bool
    location: str


@dataclass(frozen=True)
class NotSent:
    """What was not stored, and stays where it is."""

    name: str
    """The id of the record, or the file or folder that was named."""
    error: FlagbenchError


def push(files: Sequence[Path], *, store_url: str | None) -> Iterator[Sent | NotSent]:
    """Send what waits for this user or, where they are given, what those folders and files hold, one by one.

    `store_url` names another place for all of it. Nothing that another process has sent meanwhile is an error.
    """
    unsent: list[Waiting] = [] if files else waiting(unsent_folder())
    for named in files:
        inside, wrong = _find(named)
        unsent += inside
        yield from wrong
    stores: dict[str | None, tuple[Store, dict[str, set[str]]] | FlagbenchError] = {}
    for item in unsent:
        try:
            address = store_url or _address(item, of_user=not files)
            if address not in stores:  # each is opened and listed once
                stores[address] = _open(address)
            target = stores[address]
            if isinstance(target, FlagbenchError):
                raise target
            store, known = target
            location = item.send(store, known)
        except FlagbenchError as error:
            if item.path.exists():
                yield NotSent(item.record_id if item.address else str(item.path), error)
            continue
        item.forget(keep=item.place is None and bool(files))
        yield Sent(item.record_id, item.place is not None, location)


def _find(named: Path) -> tuple[list[Waiting], list[NotSent]]:
    """What a file or a folder holds, and what of it is no record."""
    if named.is_dir() and (waits := waiting(named)):
        return waits, []
    records = sorted(named.glob("*.json")) if named.is_dir() else [named]
    if not records:
        empty = FlagbenchError(
            f"{named} has no record (*.json), and nothing waits in it",
            remedy="name an image's --out folder, or files of records; to copy a store, see docs/object-storage.md",
            code=ExitCode.DATA,
        )
        return [], [NotSent(str(named), empty)]
    found, wrong = [], []
    for file in records:
        try:
            found.append(record_file(file))
        except FlagbenchError as error:
            wrong.append(NotSent(str(file), error))
    return found, wrong


def _open(address: str | None) -> tuple[Store, dict[str, set[str]]] | FlagbenchError:
    """A store and the keys in it, or why it cannot be reached."""
    try:
        store = open_store(address)
        return store, store.keys()
    except FlagbenchError as error:
        return error


def _address(waits: Waiting, *, of_user: bool) -> str | None:
    """Where it is meant for. Raises FlagbenchError (not stored) where that cannot be used."""
    address = waits.address
    # A folder that was named may come from another machine, whose images let only uploads wait.
    if address is not None and not address.lower().startswith("s3:") and not of_user:
        raise FlagbenchError(
            f"{waits.path} is meant for {address!r}, which is not a bucket",
            remedy="name the store with --store",
            code=ExitCode.NOT_STORED,
        )
    return address
