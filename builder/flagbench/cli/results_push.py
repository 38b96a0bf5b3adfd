"""`flagbench results push`: what runs could not store, sent where it was meant for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flagbench.cli.options import JsonOption, StoreOption
from flagbench.errors import FlagbenchError
from flagbench.output import echo_json, print_error
from flagbench.records.bucket_blobs import store_errors
from flagbench.records.store import Store, open_store
from flagbench.records.waiting import Waiting, record_file, unsent_folder, waiting
from flagbench.terminal import visible
from flagbench_core.exit_codes import ExitCode
from flagbench_core.redaction import redact
from flagbench_core.s3.ticket import MEANT_FOR, read_ticket


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
    with store_errors():
        granted = None if ticket is None else read_ticket(str(ticket))
    opened: dict[str | None, tuple[Store, dict[str, set[str]]] | FlagbenchError] = {}  # each is tried and listed once
    sent: dict[str, list[dict[str, str | None]]] = {"stored": [], "bundles": []}
    failed: list[tuple[str, FlagbenchError]] = []
    found: list[Waiting] = [] if files else waiting(unsent_folder())
    for named in files or ():
        waits = waiting(named) if named.is_dir() else []
        found += waits
        records = [] if waits else sorted(named.glob("*.json")) if named.is_dir() else [named]
        if not (waits or records):
            failed.append((str(named), _nothing_in(named)))
        for file in records:
            try:
                found.append(record_file(file))
            except FlagbenchError as error:
                failed.append((str(file), error))
    for each in found:
        if granted is not None and each.address not in (None, granted.meant_for):
            continue
        try:
            if granted is not None:
                location = each.send(granted)
            else:
                address = store or _address(each, of_user=not files)
                if address not in opened:
                    opened[address] = _open(address)
                if isinstance(target := opened[address], FlagbenchError):
                    raise target
                location = each.send(*target)
        except FlagbenchError as error:
            if each.path.exists():  # else another process has sent it meanwhile
                failed.append((each.record_id if each.address else str(each.path), error))
            continue
        each.forget(keep=each.place is None and bool(files))
        what, kind = ("record", "stored") if each.place is None else ("bundle of", "bundles")
        sent[kind].append({"record_id": each.record_id, "location": location})
        if not json:
            kept = f"kept in {location}" if location else "uploaded"
            typer.echo(visible(f"{what} {each.record_id} {kept}"), err=True)
    if granted is not None and files and not (any(sent.values()) or failed):
        wrong = f"nothing in {', '.join(map(str, files))} waits for the run {granted.run_id}"
        failed.append(
            (granted.run_id, FlagbenchError(wrong, remedy="name the ticket of its run", code=ExitCode.DATA))
        )
    for message, remedy in dict.fromkeys((error.message, error.remedy) for _, error in failed):
        print_error(message, remedy)
    if json:
        echo_json({**sent, "failed": [{"name": name, "error": redact(error.message)} for name, error in failed]})
    elif not (any(sent.values()) or failed):
        typer.echo("nothing is waiting to be stored", err=True)
    if failed:
        raise typer.Exit(int(failed[0][1].code))


def _nothing_in(folder: Path) -> FlagbenchError:
    return FlagbenchError(
        f"{folder} has no record (*.json), and nothing waits in it",
        remedy="name an image's --out folder, or files of records; docs/object-storage.md says how to copy a store",
        code=ExitCode.DATA,
    )


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
    if address is not None and address.startswith(MEANT_FOR):
        raise FlagbenchError(
            f"what the run {address[len(MEANT_FOR) :]} left waits for its ticket",
            remedy="give it with --ticket FILE, or name a store with --store",
            code=ExitCode.NOT_STORED,
        )
    # A folder that was named may come from another machine, whose images let only uploads wait.
    if address is not None and not address.lower().startswith("s3:") and not of_user:
        raise FlagbenchError(
            f"{waits.path} is meant for {address!r}, which is not a bucket",
            remedy="name the store with --store",
            code=ExitCode.NOT_STORED,
        )
    return address
