"""`flagbench store ticket` and `collect`: uploads from machines that hold no keys of the bucket."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from flagbench.cli.options import JsonOption, StoreOption
from flagbench.cli.output import echo_json, print_error
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.files import reason
from flagbench.redaction import redact
from flagbench.request import MAX_NODES, check_run_id, new_run_id
from flagbench.stores import open_store
from flagbench.stores.inbox import MOST_HOURS, Collected, Inbox
from flagbench.terminal import visible


def ticket(
    run_id: Annotated[str | None, typer.Option(help="Name of the run. Default: a new one.")] = None,
    nodes: Annotated[int, typer.Option(min=1, max=MAX_NODES, help="Number of nodes.")] = 1,
    hours: Annotated[float, typer.Option(min=0.01, max=MOST_HOURS, help="How long it can be used.")] = 24,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write a file (mode 0600), not to stdout.")
    ] = None,
    store: StoreOption = None,
) -> None:
    """Make a ticket: the uploads of one run, for a machine that gets no keys of the bucket.

    Its holder can store one record and a bundle of each node, once, and nothing else, until it expires. It is a
    credential. `flagbench run --ticket FILE` and an image's --ticket use it; `flagbench store collect` takes over
    what was uploaded.
    """
    if run_id is not None:
        check_run_id(run_id)
    made = Inbox(open_store(store)).issue(run_id or new_run_id(), nodes, hours)
    if out is None:
        print(made.encode().decode().rstrip("\n"))
    else:
        try:  # for its owner alone, and never over another one: that may be in use
            with open(out, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                file.write(made.encode())
        except OSError as error:
            raise FlagbenchError(
                f"--out {out} cannot be written: {reason(error)}",
                remedy="name a new file in a folder that you can write to",
            ) from error
    warning = (
        f"the ticket is a credential: until {made.expires_at} its holder can store the record of the run "
        f"{made.run_id} in {made.store}"
    )
    if "X-Amz-Security-Token" in made.uploads["record.json"]:
        warning += "; it ends with the session of these credentials, if that is sooner"
    typer.echo(visible(f"warning: {warning}"), err=True)


def collect(store: StoreOption = None, json: JsonOption = False) -> None:
    """Take over what holders of tickets uploaded: each record and bundle is checked, then kept as any other.

    What is not a sound record or bundle of its run stays where it is, with the reason; the exit code is then 3.
    --json prints {"collected": [{run_id, record_id, location, bundles}], "failed": [{run_id, error}]}; location is
    null where only bundles arrived.
    """
    inbox = Inbox(open_store(store))
    collected: list[Collected] = []
    failures: list[tuple[str, FlagbenchError]] = []
    for run_id, places in inbox.waiting().items():
        try:
            found = inbox.collect(run_id, places)
        except FlagbenchError as error:  # the uploads of other runs are collected all the same
            failures.append((run_id, error))
            continue
        collected += [found] * bool(found.location or found.bundles)
        for problem in found.problems:
            remedy = "wait for what is missing, or delete that object"
            failures.append((run_id, FlagbenchError(problem, remedy=remedy, code=ExitCode.DATA)))
    for _, failure in failures:
        print_error(failure.message, failure.remedy)
    if json:
        names = ("run_id", "record_id", "location", "bundles")
        kept = [{name: getattr(found, name) for name in names} for found in collected]
        failed = [{"run_id": run_id, "error": redact(error.message)} for run_id, error in failures]
        echo_json({"collected": kept, "failed": failed})
    else:
        for found in collected:
            record = f"record {found.record_id}{f' kept in {found.location}' if found.location else ''}"
            typer.echo(visible(f"{found.run_id}: {record}, {found.bundles} bundle(s)"), err=True)
        if not (collected or failures):
            typer.echo("no uploads wait", err=True)
    if failures:
        raise typer.Exit(int(failures[0][1].code))
