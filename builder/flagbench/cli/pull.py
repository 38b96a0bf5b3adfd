"""`flagbench pull`: an image from a bucket into the engine."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from flagbench.cli import complete
from flagbench.cli.options import JsonOption
from flagbench.cli.output import echo_json
from flagbench.errors import FlagbenchError
from flagbench.image_reference import image_of
from flagbench.images.engines import open_engine
from flagbench.images.oci.bucket_address import BucketImage, is_in_bucket, parse_bucket_image, parse_image_bucket
from flagbench.images.oci.pull import pull
from flagbench.manifests.load import load_catalog
from flagbench.manifests.lookup import resolve_image
from flagbench.progress import Progress
from flagbench.terminal import brief


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
    Layers that the engine has are downloaded too, once, unless they were compared on this machine before.

    --json prints {source, image, image_id, manifest, config, downloaded (bytes)}. Exit codes: 2 usage, or no such
    bucket or image, 3 a damaged image, 15 engine, network or a full disk.
    """
    found = _source(image, source)
    with closing(open_engine()) as engine:
        pulled = pull(found, engine, Progress(quiet=quiet or as_json))
    if as_json:
        echo_json(pulled.as_json())
    elif quiet:
        print(pulled.image.id)
    else:
        state = "pulled" if pulled.loaded else "up to date"
        print(f"{found.local_name}  {state}  {pulled.image.id}\n  manifest: {pulled.manifest}")


def _source(image: str, source: str | None) -> BucketImage:
    """The image in its bucket. Raises FlagbenchError (usage)."""
    if is_in_bucket(image):
        if source is not None:
            raise FlagbenchError(f"{brief(image)} names its bucket itself", remedy="leave out --from")
        return parse_bucket_image(image)
    if source is None:
        raise FlagbenchError(
            f"{brief(image)}: no bucket given",
            remedy="name its bucket with --from s3://BUCKET; `docker pull` pulls from a registry",
        )
    case, stack = resolve_image(image, load_catalog(claims=False))
    name, _, tag = image_of(case.name, stack.name).partition(":")
    return BucketImage(parse_image_bucket(source), name, tag, None)
