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
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="Write complete build directories there.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every stack and every case on it.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="With --all: compare with the committed Dockerfiles, write nothing.")
    ] = False,
    template: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A template that extends stack.j2 or case.j2.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print an image's Dockerfiles, or write its build directories.

    Prints the Dockerfile of a stack; for a case on a stack, that of the stack and then its own. With -o it writes
    DIR/stack and DIR/CASE, complete build directories, which must not exist. --all refreshes the committed
    Dockerfiles, images/rendered; --all --check compares with them and exits 2 if one differs; --all -o writes
    DIR/STACK/stack and DIR/STACK/CASE.

    --json prints {"images": [{"name", "digest", "files": [PATH, ...], "dockerfile", "folder"}]}, the folder with -o
    only; with --all alone {"changed": [PATH, ...]}, and with --check {"differs": [{"path", "diff"}]}.
    """
    if (image is None) != every:
        raise FlagbenchError(
            "name one image, or all of them", remedy="write CASE:STACK, the name of a stack, or --all"
        )
    if check and (not every or out is not None or template is not None):
        raise FlagbenchError(
            "--check compares the committed Dockerfiles, all of them and as they are",
            remedy="write `flagbench render --all --check`",
        )
    catalog = load_catalog_without_claims()
    renderer = ImageRenderer(catalog, template)
    if image is not None:
        _show(renderer.render_tiers(find_target(image, catalog)), out, as_json)
    elif out is not None:
        _show({rendered.folder: rendered for rendered in renderer.render_matrix()}, out, as_json)
    elif check:
        _compare(renderer, as_json)
    else:
        _refresh(renderer, as_json)


def _show(images: dict[str, BuildDirectory], out: Path | None, as_json: bool) -> None:
    """Print the Dockerfiles, or write the build directories to `out`. `images`: by their folders."""
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
    """Write the committed Dockerfiles that have changed, and print their names."""
    changed = renderer.refresh()
    if as_json:
        echo_json({"changed": changed})
        return
    images = renderer.find_committed_images()
    for name in changed:
        print(f"wrote or removed {images / name}")
    if not changed:
        print(f"up to date: {images / 'rendered'}")
