"""`flagbench manifests`: what is generated from the manifests of a checkout, for those who change them."""

from __future__ import annotations

from typing import Annotated

import typer

from flagbench.cli.options import JsonOption
from flagbench.errors import FlagbenchError
from flagbench.manifests.compile import image_package, stale_compiled, write_stale
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
    stale = stale_compiled(catalog, package)
    changed = list(stale) if check else write_stale(package, stale)
    if check and changed:
        raise FlagbenchError(
            f"compiled manifests are stale: {', '.join(changed)}", remedy="run `flagbench manifests compile`"
        )
    if json:
        echo_json({"package": str(package), "changed": changed})
        return
    for name in changed:
        print(f"wrote or removed {package / name}")
    if not changed:
        print(f"up to date: {package}")


@app.command("docs")
def write_docs(check: CheckOption = False, json: JsonOption = False) -> None:
    """Write manifests/schema, and what is generated in README.md and docs/: tables, diagrams, badges, a picture.

    --json prints {"changed": [FILE, ...]}.
    """
    catalog = load_catalog()
    root = image_package(catalog).parents[1]
    files = generated_files(catalog, root)
    stale = {
        path: text for path, text in files.items() if not path.is_file() or path.read_text(encoding="utf-8") != text
    }
    names = [path.relative_to(root).as_posix() for path in stale]
    if check and stale:
        raise FlagbenchError(f"stale: {', '.join(names)}", remedy="run `flagbench manifests docs`")
    for path, text in stale.items():
        path.write_text(text, encoding="utf-8")
    if json:
        echo_json({"changed": names})
        return
    print(f"wrote {', '.join(names)}" if names else f"up to date: {root / 'docs'}")
