"""`flagbench pull`: brings an image from a bucket into the container engine."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from flagbench import complete
from flagbench.cli.options import JsonOption
from flagbench.console.output import echo_json
from flagbench.console.progress import Progress
from flagbench.images.docker import open_engine
from flagbench.images.pull import find_in_bucket, pull


def command(
    image: Annotated[
        str,
        typer.Argument(
            metavar="CASE:STACK|s3://BUCKET/NAME[:TAG|@DIGEST]",
            autocompletion=complete.images,
            help="For example distilbert:cpu, or s3://BUCKET/flagbench/distilbert:cpu.",
        ),
    ],
    source: Annotated[
        str | None, typer.Option("--from", metavar="s3://BUCKET", help="The bucket of CASE:STACK.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but the image's id.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Bring an image from a bucket into the container engine, verified by digest.

    It is for buckets whose objects are not public; from a public one, and from any registry, `docker pull` does it.
    Layers that the engine has are not downloaded.

    --json prints {source, image, image_id, manifest, config, downloaded (bytes)}. Exit codes: 2 usage, or no such
    bucket or image, 3 a damaged image, 15 engine, network or a full disk.
    """
    bucket_image = find_in_bucket(image, source)
    with closing(open_engine()) as engine:
        pulled = pull(bucket_image, engine, Progress(quiet=quiet or as_json))
    if as_json:
        echo_json(pulled.as_json())
    elif quiet:
        print(pulled.image.id)
    else:
        state = "up to date"
        if pulled.loaded:
            state = "pulled"
        print(f"{bucket_image.local_name}  {state}  {pulled.image.id}\n  manifest: {pulled.manifest}")
