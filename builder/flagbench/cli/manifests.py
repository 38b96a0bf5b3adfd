"""`flagbench manifests`: generates the image side's copies of the manifests, for those who change manifests."""

from __future__ import annotations

from typing import Annotated

import typer

from flagbench.cli.options import JsonOption
from flagbench.console.output import echo_json
from flagbench.errors import FlagbenchError
from flagbench.manifests.compile import image_package, stale_compiled, write_stale
from flagbench.manifests.load import load_catalog

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, add_completion=False)
CheckOption = Annotated[bool, typer.Option("--check", help="Write nothing; exit 2 if something is stale.")]


@app.callback()
def manifests() -> None:
    """Generate the image side's copies of the manifests, in a checkout."""


@app.command("compile")
def compile_manifests(check: CheckOption = False, json: JsonOption = False) -> None:
    """Write case.json and stacks/*.json for the image side, from the manifests beside it.

    --json prints {"package": DIR, "changed": [FILE, ...]}.
    """
    catalog = load_catalog()
    package = image_package(catalog)
    stale = stale_compiled(catalog, package)
    if check and stale:
        raise FlagbenchError(f"stale: {', '.join(stale)}", remedy="run `flagbench manifests compile`")
    changed = write_stale(package, stale)
    if json:
        echo_json({"package": str(package), "changed": changed})
    elif changed:
        for name in changed:
            print(f"wrote or removed {package / name}")
    else:
        print(f"up to date: {package}")
