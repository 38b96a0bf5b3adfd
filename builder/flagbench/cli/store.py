"""`flagbench store`: what a place for records promises, and tickets for machines without keys."""

from __future__ import annotations

import typer

from flagbench.cli import store_ticket
from flagbench.cli.options import JsonOption, StoreOption
from flagbench.output import echo_json, print_page
from flagbench.page import Table
from flagbench.records.store import open_store
from flagbench.records.store_doctor import TICKETS, probe
from flagbench_core.exit_codes import ExitCode

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, add_completion=False)


@app.callback()
def group() -> None:
    """Test a store; create and collect upload tickets."""


app.command("ticket")(store_ticket.ticket)
app.command("collect")(store_ticket.collect)


@app.command("doctor")
def doctor(store: StoreOption = None, json: JsonOption = False) -> None:
    """Write, read, race for and remove objects in a store, and say whether records are safe in it.

    Exits 0 where they are, also if tickets do not work there, else 2. What was written is removed.
    --json prints {"store": URL, "safe": bool, "promises": [{name, kept, detail}]}.
    """
    place = open_store(store)
    promises = [*probe(place.blobs)]
    broken = {promise.name for promise in promises if not promise.kept}
    safe = broken <= {TICKETS}
    if json:
        echo_json({"store": place.url, "safe": safe, "promises": [vars(promise) for promise in promises]})
    else:
        rows = [(promise.name, "kept" if promise.kept else "BROKEN", promise.detail) for promise in promises]
        print_page(Table(("PROMISE", "RESULT", "DETAIL"), rows))
        why = "nothing can be written there" if "writes" in broken else "a record could be lost or replaced"
        print(f"{place.url}: {'safe for records' if safe else f'NOT safe: {why}'}")
        if TICKETS in broken:
            print(f"{place.url}: do not use tickets: an upload could fail, or replace another one")
    if not safe:
        raise typer.Exit(int(ExitCode.USAGE))
