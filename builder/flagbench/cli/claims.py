"""`flagbench claims lint`: what is published, checked against itself."""

from __future__ import annotations

import typer

from flagbench.catalog.load import load_catalog
from flagbench.cli.options import JsonOption
from flagbench.cli.output import echo_json
from flagbench.errors import FlagbenchError
from flagbench.verify import reproductions

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, add_completion=False)


@app.callback()
def group() -> None:
    """Check the published rows against themselves."""


@app.command("lint")
def lint(json: JsonOption = False) -> None:
    """Check every claim: its fields, its names, and that its utilisation follows from its throughput.

    Prints one line for each published utilisation, and exits 2 if one neither fits nor is named an anomaly.
    --json prints {"claims": N, "utilisations": [{"claim", "formula", "throughput", "devices", "printed",
    "computed", "fit", "anomaly", "problem"}]}.
    """
    catalog = load_catalog()
    found = reproductions(catalog)
    if json:
        echo_json({"claims": len(catalog.claims), "utilisations": [entry.to_dict() for entry in found]})
    else:
        for entry in found:
            print(f"{entry}, as its anomaly says" if entry.listed and not entry.problem else entry)
        print(f"{len(catalog.claims)} claims, {len(found)} utilisations computed again")
    problems = [entry.problem for entry in found if entry.problem]
    if problems:
        raise FlagbenchError(
            "; ".join(problems),
            remedy="compare the row with its source, then list the misfit as an anomaly or remove the anomaly",
        )
