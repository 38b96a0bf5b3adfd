"""`flagbench results push`: what runs could not store, sent where it was meant for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flagbench.cli.options import JsonOption, StoreOption
from flagbench.cli.output import echo_json, print_error
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.files import read_file, reason
from flagbench.record.read import MAX_BYTES, read_record
from flagbench.redaction import redact
from flagbench.s3.ticket import MEANT_FOR, Ticket
from flagbench.stores import Store, open_store
from flagbench.stores.ticket import read_ticket, upload_bundle, upload_record
from flagbench.stores.waiting import Waiting, unsent_folder, waiting
from flagbench.terminal import visible


def push(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[OUT|FILE...]",
            help="Folders of --out, or records; by default what runs of this user could not store.",
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
    fails stays where it is; the others are stored.

    --json prints {"stored": [{record_id, location}], "bundles": [{record_id, location}],
    "failed": [{name, error}]}; location is null where a ticket leads.
    """
    if ticket is not None and store is not None:
        raise FlagbenchError("--ticket and --store contradict each other", remedy="give one of them")
    sent = _Sent(None if ticket is None else read_ticket(ticket), store, json)
    for folder in [file for file in files if file.is_dir()] if files else [unsent_folder()]:
        found = waiting(folder)
        for each in found:
            sent.send_waiting(each, of_user=not files)
        if files and not found:
            for file in sorted(folder.glob("*.json")):
                sent.send_file(file)
    for file in files or ():
        if not file.is_dir():
            sent.send_file(file)
    sent.end()


class _Sent:
    """What was stored and what was not. Every failure is reported; the first one decides the exit code."""

    def __init__(self, ticket: Ticket | None, store: str | None, json: bool) -> None:
        self._ticket, self._store, self._json = ticket, store, json
        self._stores: dict[str | None, Store] = {}
        self._known: dict[str | None, dict[str, set[str]]] = {}
        self._stored: dict[str, list[dict[str, str | None]]] = {"record": [], "bundle": []}
        self._failures: list[tuple[str, FlagbenchError]] = []

    def send_waiting(self, waits: Waiting, *, of_user: bool) -> None:
        """Send what waits; with a ticket only what waits for that. `of_user`: it is in the user's own folder."""
        if self._ticket is not None and waits.address != self._ticket.meant_for:
            return
        try:
            address = None if self._ticket else self._store or _usable(waits, of_user)
            if waits.place is None:
                self._send_record(waits.path, address)
            elif self._ticket is not None:
                upload_bundle(self._ticket, waits.place.node, waits.path)
                self._done("bundle", waits.record_id, None)
            else:
                target = self._opened(address)
                target.bundles.put(waits.place, waits.path)
                self._done("bundle", waits.record_id, target.blobs.location(waits.place.key))
        except FlagbenchError as error:
            if waits.path.exists():  # else another process has sent it meanwhile
                self._fail(waits.record_id, error)
            return
        waits.forget(keep=waits.place is None and not of_user)

    def send_file(self, file: Path) -> None:
        """Send a record that waits for nothing."""
        try:
            self._send_record(file, self._store)
        except FileNotFoundError:
            self._fail(
                str(file), FlagbenchError(f"{file} does not exist", remedy="name a record", code=ExitCode.DATA)
            )
        except FlagbenchError as error:
            self._fail(str(file), error)

    def end(self) -> None:
        """Print the answer of --json, or that there was nothing. Raises Exit where something failed."""
        if self._json:
            failed = [{"name": name, "error": redact(error.message)} for name, error in self._failures]
            echo_json({"stored": self._stored["record"], "bundles": self._stored["bundle"], "failed": failed})
        elif not (any(self._stored.values()) or self._failures):
            typer.echo("nothing is waiting to be stored", err=True)
        if self._failures:
            raise typer.Exit(int(self._failures[0][1].code))

    def _send_record(self, file: Path, address: str | None) -> None:
        try:
            content = read_file(file, MAX_BYTES)
        except OSError as error:
            why = f"{file} cannot be read: {reason(error)}"
            raise FlagbenchError(why, remedy="name a record, or a run's --out folder", code=ExitCode.DATA) from error
        record = read_record(content, str(file))
        if self._ticket is None:
            target = self._opened(address)
            if address not in self._known:
                self._known[address] = target.keys()
            self._done("record", record.record_id, target.put(content, known=self._known[address]).location)
            return
        if record.run_id != self._ticket.run_id:
            raise FlagbenchError(
                f"{file} is a record of the run {record.run_id}, the ticket is for {self._ticket.run_id}",
                remedy="name the ticket of its run",
            )
        upload_record(self._ticket, content)
        self._done("record", record.record_id, None)

    def _done(self, what: str, record_id: str, location: str | None) -> None:
        """Note what is stored; `location`: None where a ticket leads."""
        self._stored[what].append({"record_id": record_id, "location": location})
        if not self._json:
            of = "record" if what == "record" else "bundle of"
            typer.echo(visible(f"{of} {record_id} {f'kept in {location}' if location else 'uploaded'}"), err=True)

    def _opened(self, address: str | None) -> Store:
        if address not in self._stores:
            self._stores[address] = open_store(address)
        return self._stores[address]

    def _fail(self, name: str, error: FlagbenchError) -> None:
        """Report what was not sent; the same reason is printed once."""
        if not any((told.message, told.remedy) == (error.message, error.remedy) for _, told in self._failures):
            print_error(error.message, error.remedy)
        self._failures.append((name, error))


def _usable(waits: Waiting, of_user: bool) -> str:
    """The address that something is meant for. Raises FlagbenchError (not stored) where it cannot be used."""
    if waits.address.startswith(MEANT_FOR):
        why = f"what the run {waits.address[len(MEANT_FOR) :]} left waits for its ticket"
        remedy = "give it with --ticket FILE, or name a store with --store"
        raise FlagbenchError(why, remedy=remedy, code=ExitCode.NOT_STORED)
    # A folder that was named may come from another machine, whose images let only uploads wait.
    if not waits.address.lower().startswith("s3:") and not (of_user and waits.address):
        why = f"{waits.path} is meant for {waits.address!r}, which is not a bucket"
        raise FlagbenchError(why, remedy="name the store with --store", code=ExitCode.NOT_STORED)
    return waits.address
