"""The command line's commands: what each is called, where it is and what it is for."""

from __future__ import annotations

from typing import Annotated

import typer

from flagbench._version import __version__
from flagbench.cli.lazy import Entry, lazy_group
from flagbench.cli.output import echo

COMMANDS = {
    "list": Entry("flagbench.cli.listing:command", "Show the cases, stacks and claims there are."),
    "render": Entry("flagbench.cli.render:command", "Show how images are made."),
    "lock": Entry("flagbench.cli.lock:command", "Lock the packages and the base of stacks, by hash."),
    "wheels": Entry(
        "flagbench.cli.wheels:command",
        "Fetch every package of a stack's lock into a folder, each checked against its hash.",
    ),
    "lint": Entry("flagbench.cli.lint:command", "Check Dockerfiles against flagbench's rules and hadolint."),
    "build": Entry("flagbench.cli.build:command", "Build images, each on its stack's image."),
    "layers": Entry(
        "flagbench.cli.layers:command",
        "Compare images layer by layer, without what depends on when they were built.",
    ),
    "prepare": Entry(
        "flagbench.cli.prepare:command", "Make the folders that a case's runs read out of what was downloaded."
    ),
    "run": Entry(
        "flagbench.cli.run:command",
        "Run a case, keep its record in the store, and show it beside the published row.",
    ),
    "job": Entry("flagbench.cli.job:command", "Print a Kubernetes job that runs a case, for `kubectl apply -f -`."),
    "verify": Entry(
        "flagbench.cli.verify:command", "Say whether a record reproduces a published number, and why not."
    ),
    "claims": Entry("flagbench.cli.claims:app", "Check the published rows against themselves."),
    "compare": Entry(
        "flagbench.cli.compare:command",
        "Show what differs between two records of a case, and the ratio B/A of every metric.",
    ),
    "results": Entry("flagbench.cli.results:app", "List, show, export and remove stored records."),
    "doctor": Entry(
        "flagbench.cli.doctor:command",
        "Check this machine: installation, manifests, store, packages, hardware, container engine.",
    ),
    "manifests": Entry("flagbench.cli.manifests:app", "Work on the manifests of a checkout.", hidden=True),
}

app = typer.Typer(
    name="flagbench",
    cls=lazy_group(COMMANDS),
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        echo(f"flagbench {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Benchmarks in containers, and a verdict on whether a published number is reproduced here."""
