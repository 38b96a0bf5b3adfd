"""`flagbench store`: whether records are safe in a store, and tickets for machines without keys."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from flagbench.cli.options import JsonOption, StoreOption
from flagbench.errors import FlagbenchError
from flagbench.output import echo_json, print_error, print_page
from flagbench.page import Table
from flagbench.records.store import open_store
from flagbench.records.store_doctor import TICKETS, WRITE, probe
from flagbench.records.tickets import Inbox, write_ticket
from flagbench.runs.request import MAX_NODES, check_run_id, new_run_id
from flagbench.terminal import visible
from flagbench_core.exit_codes import ExitCode
from flagbench_core.redaction import redact

_UNITS = {"m": "minutes", "h": "hours", "d": "days"}
app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, add_completion=False)


@app.callback()
def group() -> None:
    """Test a store; create and collect upload tickets."""


@app.command("doctor")
def doctor(store: StoreOption = None, json: JsonOption = False) -> None:
    """Test whether records are safe in a store: write, overwrite, list and remove objects in it.

    Exits 0 if they are, even if tickets do not work there, else 2. What was written is removed.
    --json prints {"store": URL, "safe": bool, "checks": [{name, ok, detail}]}.
    """
    place = open_store(store)
    checks = [*probe(place.blobs)]
    failed = {check.name for check in checks if not check.ok}
    safe = failed <= {TICKETS}
    if json:
        echo_json({"store": place.url, "safe": safe, "checks": [vars(check) for check in checks]})
    else:
        rows = [(check.name, "ok" if check.ok else "FAILED", check.detail) for check in checks]
        print_page(Table(("CHECK", "RESULT", "DETAIL"), rows))
        why = "it cannot be written to" if WRITE in failed else "a record could be lost or replaced"
        print(f"{place.url}: {'records are safe here' if safe else f'records are NOT safe here: {why}'}")
        if TICKETS in failed:
            print(f"{place.url}: do not use tickets here: an upload could fail or replace another one")
    if not safe:
        raise typer.Exit(int(ExitCode.USAGE))


@app.command("ticket")
def ticket(
    run_id: Annotated[str | None, typer.Option(help="Name of the run. Default: a new one.")] = None,
    nodes: Annotated[int, typer.Option(min=1, max=MAX_NODES, help="Number of nodes.")] = 1,
    expires: Annotated[
        str, typer.Option(metavar="TIME", help="How long it can be used: 90m, 24h, up to 7d.")
    ] = "24h",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write a file (mode 0600), not to stdout.")
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Make a ticket: the uploads of one run, for a machine that gets no keys of the bucket.

    Its holder can store one record and a bundle of each node, once, and nothing else, until it expires. It is a
    credential. `flagbench run --ticket FILE` and an image's --ticket use it; `flagbench store collect` takes over
    what was uploaded.

    --json prints {"run_id", "nodes", "store", "expires_at", "file"}; it needs --out.
    """
    if json and out is None:
        raise FlagbenchError(
            "--json needs --out: a ticket is not printed beside what it is", remedy="give --out FILE"
        )
    if run_id is not None:
        check_run_id(run_id)
    life = _time(expires)
    made = Inbox(open_store(store)).issue(run_id or new_run_id(), nodes, life)
    if out is None:
        print(made.encode().decode().rstrip("\n"))
    else:
        write_ticket(out, made)
    warning = (
        f"the ticket is a credential: until {made.expires_at} its holder can store the record of the run "
        f"{made.run_id} in {made.store}"
    )
    if "X-Amz-Security-Token" in made.uploads["record.json"]:
        warning += "; it ends with the session of these credentials, if that is sooner"
    typer.echo(visible(f"warning: {warning}"), err=True)
    if json:
        facts = {name: getattr(made, name) for name in ("run_id", "nodes", "store", "expires_at")}
        echo_json({**facts, "file": str(out)})


@app.command("collect")
def collect(
    run_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN_ID...]", help="Runs; by default all that wait.")
    ] = None,
    discard: Annotated[
        bool, typer.Option("--discard", help="Give up what the named runs uploaded, instead of keeping it.")
    ] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Take over what holders of tickets uploaded: each record and bundle is checked, then kept as any other.

    An upload that is not a valid record or bundle of its run is left there, with the reason; the exit code is then 3.
    --json prints {"collected": [{run_id, record_id, location, bundles}], "discarded": [run_id],
    "failed": [{run_id, error}]}; location is null where only bundles arrived.
    """
    for run_id in run_ids or ():
        check_run_id(run_id)
    if discard and not run_ids:
        raise FlagbenchError("--discard needs the names of runs", remedy="write `store collect --discard RUN_ID`")
    done = [*Inbox(open_store(store)).collect_all(run_ids or (), discard=discard)]
    collected = [each for each in done if each.location or each.bundles]
    discarded = [each.run_id for each in done if each.discarded]
    failures = [(each.run_id, error) for each in done for error in each.failures]
    for _, failure in failures:
        print_error(failure.message, failure.remedy)
    if json:
        names = ("run_id", "record_id", "location", "bundles")
        kept = [{name: getattr(found, name) for name in names} for found in collected]
        failed = [{"run_id": run_id, "error": redact(error.message)} for run_id, error in failures]
        echo_json({"collected": kept, "discarded": discarded, "failed": failed})
    else:
        for run_id in discarded:
            typer.echo(visible(f"{run_id}: discarded"), err=True)
        for found in collected:
            record = f"record {found.record_id}{f' kept in {found.location}' if found.location else ''}"
            typer.echo(visible(f"{found.run_id}: {record}, {found.bundles} bundle(s)"), err=True)
        if not (collected or discarded or failures):
            typer.echo("no uploads wait", err=True)
    if failures:
        raise typer.Exit(int(failures[0][1].code))


def _time(text: str) -> timedelta:
    found = re.fullmatch(r"([0-9]{1,5})([mhd])", text)
    if found is None:
        raise FlagbenchError(f"--expires {text!r} is not a time", remedy="write 90m, 24h or 7d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
