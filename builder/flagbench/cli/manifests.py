"""`flagbench manifests`: what is generated from the manifests of a checkout, for those who change them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from flagbench.cli.options import JsonOption
from flagbench.errors import FlagbenchError
from flagbench.manifests.compile import find_stale, image_package, stale_compiled, write_stale
from flagbench.manifests.load import load_catalog
from flagbench.output import echo_json
from flagbench.report.generated import generated_files

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, add_completion=False)
CheckOption = Annotated[bool, typer.Option("--check", help="Write nothing; exit 2 if something is stale.")]


@app.command("compile")
def compile_manifests(check: CheckOption = False, json: JsonOption = False) -> None:
    """Write case.json and stacks/*.json for the image side, from the manifests beside it.

    --json prints {"package": DIR, "changed": [FILE, ...]}.
    """
    catalog = load_catalog()
    package = image_package(catalog)
    changed = _update("compile", package, stale_compiled(catalog, package), check)
    _show({"package": str(package), "changed": changed}, package, json)


@app.command("docs")
def write_docs(check: CheckOption = False, json: JsonOption = False) -> None:
    """Write manifests/schema, and what is generated in README.md and docs/: tables, diagrams, badges, a picture.

    --json prints {"changed": [FILE, ...]}.
    """
    catalog = load_catalog()
    root = image_package(catalog).parents[1]
    files = {path.relative_to(root).as_posix(): text for path, text in generated_files(catalog, root).items()}
    changed = _update("docs", root, find_stale(root, files, ("manifests/schema/*.json",)), check)
    _show({"changed": changed}, root, json)


def _update(command: str, root: Path, stale: Mapping[str, str | None], check: bool) -> list[str]:
    """Write what is stale, and return the files. Raises FlagbenchError (usage) instead if it is only checked."""
    if check and stale:
        raise FlagbenchError(f"stale: {', '.join(stale)}", remedy=f"run `flagbench manifests {command}`")
    return write_stale(root, stale)


def _show(result: dict[str, Any], root: Path, json: bool) -> None:
    if json:
        echo_json(result)
    else:
        print("\n".join(f"wrote or removed {root / name}" for name in result["changed"]) or f"up to date: {root}")
