"""`flagbench layers`: whether two builds made the same image."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from flagbench.cli.options import JsonOption
from flagbench.cli.output import echo_json
from flagbench.engines import Engine, open_engine
from flagbench.engines.base import ImageInfo
from flagbench.engines.reproducible import differences, layers_of
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.render.stack import EPOCH
from flagbench.terminal import visible


def command(
    image: Annotated[
        str, typer.Argument(metavar="IMAGE", help="A local image by name or id, like flagbench/distilbert:cpu.")
    ],
    other: Annotated[
        str | None, typer.Argument(metavar="[OTHER]", help="Say what differs between the two, file by file.")
    ] = None,
    epoch: Annotated[
        int | None,
        typer.Option(
            metavar="SECONDS", min=0, help="Later times become this one. Default: the earliest that a label names."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare images layer by layer, without what depends on when they were built.

    Of one image it prints a digest of every layer, lowest first, its times set to the epoch; digests can be compared
    with those that another machine prints for the same epoch. Of two it prints what differs, and exits 2 if
    something does.

    --json prints {"epoch", "images": [{"image", "image_id", "layers": [DIGEST, ...]}], "differs": [TEXT, ...]}.
    """
    with closing(open_engine()) as engine:
        names = [image] if other is None else [image, other]
        found = [_inspect(engine, name) for name in names]
        epoch = _epoch(found) if epoch is None else epoch
        # By id: of a repository without a tag, an engine saves every image.
        layers = [layers_of(engine.save(each.id), epoch) for each in found]
    differs = differences(*layers) if other is not None else []
    if as_json:
        images = [
            {"image": name, "image_id": each.id, "layers": [layer.digest for layer in own]}
            for name, each, own in zip(names, found, layers, strict=True)
        ]
        echo_json({"epoch": epoch, "images": images, "differs": differs})
    elif other is None:
        for number, layer in enumerate(layers[0], 1):
            print(f"layer {number}: {layer.digest}")
    else:
        for line in differs:
            print(visible(line))
        if not differs:
            print(f"the same: {len(layers[0])} layers, times set to {epoch} where they are later")
    if differs:
        raise typer.Exit(int(ExitCode.USAGE))


def _inspect(engine: Engine, name: str) -> ImageInfo:
    """The image of that name. Raises FlagbenchError (usage) where there is none: nothing is pulled."""
    found = engine.inspect(name)
    if found is None:
        raise FlagbenchError(
            f"the engine has no image {name!r}",
            remedy="name one that `docker image ls` lists; `flagbench build` makes flagbench/CASE:STACK",
        )
    return found


def _epoch(images: list[ImageInfo]) -> int:
    """The earliest time that the images say their files were made at; that of every default build if none does."""
    labels = [image.labels.get("dev.flagbench.epoch", "") for image in images]
    # An image may come from anywhere, and say anything.
    return min((int(text) for text in labels if text.isascii() and text.isdigit()), default=EPOCH)
