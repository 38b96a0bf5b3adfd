"""`flagbench manifests`: what is made from the manifests, for those who change them."""

from __future__ import annotations

from typing import Annotated

import typer

from flagbench.errors import FlagbenchError

app = typer.Typer(
    help="Work on the manifests of a checkout.", no_args_is_help=True, rich_markup_mode=None, add_completion=False
)


@app.callback()
def group() -> None:
    """Work on the manifests of a checkout."""


@app.command("compile")
def compile_manifests(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 2 if something is stale.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write case.json and stacks/*.json for the image side, from the manifests beside it.

    --json prints {"package": DIR, "changed": [FILE, ...]}.
    """
    from flagbench.catalog.compile import image_package, stale_files, write_compiled
    from flagbench.catalog.load import load_catalog
    from flagbench.cli.output import echo, echo_json

    catalog = load_catalog()
    package = image_package(catalog)
    changed = stale_files(catalog, package) if check else write_compiled(catalog, package)
    if check and changed:
        raise FlagbenchError(
            f"compiled manifests are stale: {', '.join(changed)}", remedy="run `flagbench manifests compile`"
        )
    if json:
        echo_json({"package": str(package), "changed": changed})
        return
    for name in changed:
        echo(f"wrote or removed {package / name}")
    if not changed:
        echo(f"up to date: {package}")


@app.command("docs")
def write_docs(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 2 if the page is stale.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write docs/reference.md, the tables of cases, stacks, claims and exit codes, from the manifests.

    --json prints {"page": FILE, "changed": BOOL}.
    """
    from flagbench.catalog.compile import image_package
    from flagbench.catalog.load import load_catalog
    from flagbench.cli.output import echo, echo_json
    from flagbench.report.reference import reference

    catalog = load_catalog()
    path = image_package(catalog).parents[1] / "docs" / "reference.md"
    text = reference(catalog)
    stale = not path.is_file() or path.read_text(encoding="utf-8") != text
    if check and stale:
        raise FlagbenchError(f"{path} is stale", remedy="run `flagbench manifests docs`")
    if stale:
        path.write_text(text, encoding="utf-8")
    if json:
        echo_json({"page": str(path), "changed": stale})
        return
    echo(f"{'wrote' if stale else 'up to date:'} {path}")
