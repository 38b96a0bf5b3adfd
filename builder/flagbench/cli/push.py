"""`flagbench push`: pushes an image to a registry or a bucket."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from flagbench import complete
from flagbench.cli.options import JsonOption
from flagbench.console.output import echo_json
from flagbench.console.progress import Progress
from flagbench.image_reference import NAMESPACE, image_of
from flagbench.images.bucket import ImageBucket, is_in_bucket, parse_image_bucket
from flagbench.images.docker import open_engine
from flagbench.images.push import (
    find_local_image,
    push_to_bucket,
    push_to_registry,
    require_redistributable,
    require_registry,
)
from flagbench.images.tags import TAG_VERSION
from flagbench.manifests.load import load_catalog_without_claims
from flagbench.manifests.lookup import resolve_image


def command(
    image: Annotated[
        str,
        typer.Argument(
            metavar="CASE:STACK", autocompletion=complete.images, help="An image that `flagbench build` made."
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            metavar="HOST[/PATH]|s3://BUCKET",
            help="A registry other than Docker Hub, where the image becomes HOST[/PATH]/flagbench/CASE, or a bucket.",
        ),
    ],
    i_may_redistribute: Annotated[
        bool,
        typer.Option(
            "--i-may-redistribute",
            help="Push although the licence of the stack's base may not allow everybody to redistribute it.",
        ),
    ] = False,
    public: Annotated[bool, typer.Option("--public", help="In a bucket: let everyone read what is pushed.")] = False,
    json: JsonOption = False,
) -> None:
    """Push an image with its fixed tag and the moving ones.

    To a registry it is `docker push`, with the credentials of `docker login`. A bucket gets only what it lacks, in
    the layout of a registry, so that `docker pull` works where it is public.

    --json prints {image, place, tags, digest, image_id, bytes_sent, blobs: [{digest, size, how}]}, the last two null
    for a registry. Exit codes: 2 usage, or no such image or bucket, 3 something is damaged, 15 engine, registry,
    network, full disk.
    """
    case, stack = resolve_image(image, load_catalog_without_claims())
    repository = f"{NAMESPACE}/{case.name}"
    bucket = None
    if is_in_bucket(to):
        bucket = ImageBucket(parse_image_bucket(to), repository, public=public)
    else:
        require_registry(to, repository, public=public)
    stack_names = dict.fromkeys((stack.name, *stack.aliases))  # each once
    aliases = tuple(image_of(case.name, name) for name in stack_names)
    progress = Progress(quiet=json)
    with closing(open_engine()) as engine:
        source = find_local_image(image_of(case.name, stack.name, TAG_VERSION), aliases, engine)
        if not i_may_redistribute:
            require_redistributable(stack, source.info)
        if bucket is None:
            pushed = push_to_registry(source, f"{to}/{repository}", engine, progress.show)
        else:
            pushed = push_to_bucket(source, bucket, engine, progress)
    if json:
        echo_json({"image": f"{case.name}:{stack.name}", **pushed.as_json()})
        return
    for tag in pushed.tags:
        print(f"{pushed.place}:{tag}")
    line = f"{pushed.place}@{pushed.digest}"
    if pushed.bytes_sent is not None:
        line += f"  {pushed.bytes_sent / 1e6:.1f} MB sent"
    print(line)
