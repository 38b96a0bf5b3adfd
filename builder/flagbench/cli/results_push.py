"""`flagbench results push`: what runs could not store, sent where it was meant for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flagbench.cli.options import JsonOption, StoreOption
from flagbench.errors import FlagbenchError
from flagbench.output import echo_json, print_error
from flagbench.records.bucket_blobs import store_errors
from flagbench.records.push import NotSent
from flagbench.records.push import push as push_all
from flagbench.terminal import visible
from flagbench_core.redaction import redact
from flagbench_core.s3.ticket import read_ticket


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
    sent: dict[str, list[dict[str, str | None]]] = {"stored": [], "bundles": []}
    failed: list[NotSent] = []
    for each in push_all(files or (), store_url=store, ticket=granted):
        if isinstance(each, NotSent):
            failed.append(each)
            continue
        sent["bundles" if each.bundle else "stored"].append({"record_id": each.record_id, "location": each.location})
        if not json:
            kept = f"kept in {each.location}" if each.location else "uploaded"
            typer.echo(visible(f"{'bundle of' if each.bundle else 'record'} {each.record_id} {kept}"), err=True)
    for message, remedy in dict.fromkeys((each.error.message, each.error.remedy) for each in failed):
        print_error(message, remedy)
    if json:
        errors = [{"name": each.name, "error": redact(each.error.message)} for each in failed]
        echo_json({**sent, "failed": errors})
    elif not (any(sent.values()) or failed):
        typer.echo("nothing is waiting to be stored", err=True)
    if failed:
        raise typer.Exit(int(failed[0].error.code))
