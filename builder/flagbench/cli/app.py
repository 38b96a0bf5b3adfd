"""The command line's commands, each registered from its own module.

Modules registered here import only light things at their top: `flagbench --help` imports them all.
"""

from __future__ import annotations

from typing import Annotated

import typer

from flagbench.cli import compare, doctor, listing, manifests, results, run, verify

app = typer.Typer(
    name="flagbench",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        from flagbench._version import __version__
        from flagbench.cli.output import echo

        echo(f"flagbench {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Benchmarks in containers, and a verdict on whether a published number is reproduced here."""


app.command("list")(listing.command)
app.command("run")(run.command)
app.command("verify")(verify.command)
app.command("compare")(compare.command)
app.add_typer(results.app, name="results")
app.command("doctor")(doctor.command)
app.add_typer(manifests.app, name="manifests", hidden=True)
