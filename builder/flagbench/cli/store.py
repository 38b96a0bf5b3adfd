"""`flagbench store`: tests whether records are safe in a store."""

from __future__ import annotations

import typer

from flagbench.cli.options import JsonOption, StoreOption
from flagbench.console.output import echo_json, print_page
from flagbench.console.page import Lines, Table
from flagbench.records.store import open_store
from flagbench.records.store_doctor import WRITE, probe
from flagbench_core.exit_codes import ExitCode

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, add_completion=False)


@app.callback()
def group() -> None:
    """Test whether records are safe in a store."""


@app.command("doctor")
def doctor(store: StoreOption = None, json: JsonOption = False) -> None:
    """Test whether records are safe in a store: write, overwrite, list and remove objects in it.

    Exits 0 if they are, else 2. What was written is removed.
    --json prints {"store": URL, "safe": bool, "checks": [{name, ok, detail}]}.
    """
    place = open_store(store)
    checks = [*probe(place.blobs)]
    failed = {check.name for check in checks if not check.ok}
    if json:
        echo_json({"store": place.url, "safe": not failed, "checks": [vars(check) for check in checks]})
    else:
        rows = []
        for check in checks:
            outcome = "FAILED"
            if check.ok:
                outcome = "ok"
            rows.append((check.name, outcome, check.detail))
        if not failed:
            answer = f"records are safe in {place.url}"
        elif WRITE in failed:
            answer = f"records are NOT safe in {place.url}: it cannot be written to"
        else:
            answer = f"records are NOT safe in {place.url}: a record could be lost or replaced"
        print_page(Lines((answer,)), Table(("CHECK", "RESULT", "DETAIL"), rows, wrap=("DETAIL",)))
    if failed:
        raise typer.Exit(int(ExitCode.USAGE))
