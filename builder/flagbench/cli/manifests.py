"""`flagbench manifests`: what is generated from the manifests of a checkout, for those who change them."""

from __future__ import annotations

from functools import partial
from inspect import signature
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from flagbench.catalog.compile import image_package, stale_compiled, write_stale
from flagbench.catalog.load import load_catalog
from flagbench.cli.app import COMMANDS, load
from flagbench.cli.options import JsonOption
from flagbench.cli.output import echo_json
from flagbench.errors import FlagbenchError
from flagbench.report.export import table
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
    """Write what is generated in README.md and docs/: reference tables, diagrams, badges, the picture of a verdict.

    --json prints {"changed": [FILE, ...]}.
    """
    catalog = load_catalog()
    root = image_package(catalog).parents[1]
    files = generated_files(catalog, root, {f"{name}-options": partial(_options, name) for name in COMMANDS})
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


def _options(name: str) -> str:
    """A table of the options of a command and their help; hidden ones are left out."""
    command = load(name)
    types = {name: one.annotation for name, one in signature(command.callback, eval_str=True).parameters.items()}
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    return table(
        ("option", "meaning"), ((f"`{_usage(option, types[option.name])}`", _meaning(option)) for option in options)
    )


def _usage(option: Any, annotation: Any) -> str:
    """`-o, --out OUT`; the same for every release of Typer, unlike its own help."""
    value = "" if option.is_flag else option.metavar or _values(annotation)
    return f"{', '.join(option.opts)} {value}".rstrip()


def _values(annotation: Any) -> str:
    """What an option takes: its choices, or its type."""
    inner = [part for part in get_args(annotation) if part is not NoneType]
    if get_origin(annotation) is Literal:
        return "|".join(inner)
    return _values(inner[0]) if inner else str(annotation.__name__).upper()


def _meaning(option: Any) -> str:
    default = "" if option.is_flag or option.default in (None, ...) else f" Default: {option.default}."
    return f"{' '.join(option.help.split())}{default}"
