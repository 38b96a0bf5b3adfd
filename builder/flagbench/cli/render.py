"""`flagbench render`: prints or writes the Dockerfiles of images, to read, to build by hand, or to commit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flagbench import complete
from flagbench.cli.options import JsonOption
from flagbench.console.output import echo_json
from flagbench.errors import FlagbenchError
from flagbench.images.render.directory import BuildDirectory, write_tree
from flagbench.images.render.image import ImageRenderer, find_target
from flagbench.manifests.load import load_catalog_without_claims


def command(
    image: Annotated[
        str | None,
        typer.Argument(
            metavar="CASE:STACK|STACK", autocompletion=complete.images, help="For example distilbert:cpu."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="Write complete build directories to DIR.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every stack and every case on it.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="With --all: compare with the committed Dockerfiles, write nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print an image's Dockerfiles, or write its build directories.

    STACK prints the Dockerfile of the stack; CASE:STACK prints that of the stack and then that of the case.

    With -o DIR, complete build directories are written: DIR/stack and DIR/CASE, which must not exist.

    --all brings the committed Dockerfiles, in images/rendered, up to date.

    --all --check compares with them, writes nothing, and exits 2 if one differs.

    --all -o DIR writes DIR/STACK/stack and DIR/STACK/CASE.

    --json prints {"images": [{"name", "digest", "files": [PATH, ...], "dockerfile", "folder"}]}, the folder with -o
    only; with --all alone {"changed": [PATH, ...]}, and with --check {"differs": [{"path", "diff"}]}.
    """
    _check_combination(image, out, every=every, check=check)
    catalog = load_catalog_without_claims()
    renderer = ImageRenderer(catalog)
    if image is not None:
        _show(renderer.render_tiers(find_target(image, catalog)), out, as_json)
    elif out is not None:
        _show({rendered.folder: rendered for rendered in renderer.render_matrix()}, out, as_json)
    elif check:
        _compare(renderer, as_json)
    else:
        _refresh(renderer, as_json)


def _check_combination(image: str | None, out: Path | None, *, every: bool, check: bool) -> None:
    """Raise FlagbenchError (USAGE) for options that exclude each other."""
    names_one_image = image is not None
    if names_one_image == every:
        raise FlagbenchError(
            "name one image, or all of them", remedy="write CASE:STACK, the name of a stack, or --all"
        )
    if check and (names_one_image or out is not None):
        raise FlagbenchError(
            "--check compares the committed Dockerfiles, all of them and as they are",
            remedy="write `flagbench render --all --check`",
        )


def _show(images: dict[str, BuildDirectory], out: Path | None, as_json: bool) -> None:
    """Print the Dockerfiles, or write the build directories to `out`.

    Args:
        images: the build directories, by their paths below `out`.
        out: the folder of -o; None to print.
        as_json: whether to print JSON.
    """
    if out is not None:
        write_tree(images, out)
    if as_json:
        echo_json({"images": [_as_json(rendered, folder, out) for folder, rendered in images.items()]})
        return
    for folder, rendered in images.items():
        if out is None:
            print(rendered.dockerfile.rstrip("\n"))
        else:
            print(f"wrote {out / folder}")


def _as_json(rendered: BuildDirectory, folder: str, out: Path | None) -> dict[str, Any]:
    """What --json prints of one image."""
    document = {
        "name": rendered.name,
        "digest": rendered.digest,
        "files": list(rendered.files),
        "dockerfile": rendered.dockerfile,
    }
    if out is not None:
        document["folder"] = str(out / folder)
    return document


def _compare(renderer: ImageRenderer, as_json: bool) -> None:
    """Compare the committed Dockerfiles with what is rendered now. Raises FlagbenchError if one differs."""
    differences = renderer.find_differences()
    if as_json:
        echo_json({"differs": [{"path": path, "diff": diff} for path, diff in differences.items()]})
    else:
        for diff in differences.values():
            print(diff.rstrip("\n"))
    if differences:
        raise FlagbenchError(
            f"committed files are stale: {', '.join(differences)}", remedy="run `flagbench render --all`"
        )


def _refresh(renderer: ImageRenderer, as_json: bool) -> None:
    """Write the committed files that have changed, remove those of no image, and print their names."""
    changed = renderer.refresh()
    if as_json:
        echo_json({"changed": changed})
        return
    committed = renderer.committed_folder()
    for name in changed:
        path = committed / name
        if path.exists():
            print(f"wrote {path}")
        else:
            print(f"removed {path}")
    if not changed:
        print(f"up to date: {committed / 'rendered'}")
