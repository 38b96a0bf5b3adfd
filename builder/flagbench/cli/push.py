"""`flagbench push`: an image into a registry or a bucket."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from flagbench.build.sbom_file import sbom_of
from flagbench.build.tiers import VERSION
from flagbench.catalog.load import load_catalog
from flagbench.catalog.lookup import resolve_image
from flagbench.cli import complete
from flagbench.cli.options import JsonOption
from flagbench.cli.output import echo_json
from flagbench.engines import open_engine
from flagbench.errors import FlagbenchError
from flagbench.images import REPOSITORY, image_of, is_on_docker_hub, is_prefix
from flagbench.oci.compress import COMPRESSIONS, Compression
from flagbench.oci.model import Place
from flagbench.oci.progress import TransferProgress
from flagbench.oci.publish import Wanted, publish
from flagbench.oci.registry import RegistryPlace


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
    compression: Annotated[
        str, typer.Option(metavar="gzip|zstd", help="zstd is smaller; Docker before 23 cannot pull it.")
    ] = "gzip",
    i_may_redistribute: Annotated[
        bool,
        typer.Option(
            "--i-may-redistribute",
            help="Send the base's layers, or make them public, although its licence may not allow everybody to.",
        ),
    ] = False,
    public: Annotated[bool, typer.Option("--public", help="In a bucket: let everyone read what is pushed.")] = False,
    json: JsonOption = False,
) -> None:
    """Push an image with its fixed tag and the moving ones, its bill of materials and its provenance.

    Only what the place lacks is sent. A base's layers are those of its own registry, neither recompressed nor, where
    its licence forbids that, redistributed. Credentials are those of `docker login`. An image whose layers depend on
    when they were built is normalised first and loaded back into the engine.

    --json prints {image, place, tags, digest, config_digest, bytes_sent, blobs: [{digest, size, how}], referrers
    {media type: digest}, replaced}. Exit codes: 2 usage, or no such image or bucket, 3 something is damaged,
    15 engine, registry, network, full disk.
    """
    case, stack = resolve_image(image, load_catalog(claims=False))
    wanted = Wanted(
        name=image_of(case.name, stack.name, VERSION),
        aliases=tuple(image_of(case.name, name) for name in dict.fromkeys((stack.name, *stack.aliases))),
        below=image_of("stack", stack.name, VERSION),
        stack=stack,
        compression=_compression(compression),
        place=_place(to, f"{REPOSITORY}/{case.name}", public=public),
        sbom_of=sbom_of,
        may_redistribute=i_may_redistribute,
    )
    with closing(open_engine()) as engine:
        published = publish(wanted, engine, TransferProgress(quiet=json))
    if json:
        echo_json({"image": f"{case.name}:{stack.name}", **published.as_json()})
        return
    for tag in published.tags:
        print(f"{published.place}:{tag}")
    print(f"{published.reference}  {published.sent / 1e6:.1f} MB sent")


def _place(to: str, repository: str, *, public: bool) -> Place:
    """Where an image goes. Raises FlagbenchError: (usage), also if there is no such bucket, or (network)."""
    if to.startswith("s3:"):
        from flagbench.oci.bucket import BucketPlace
        from flagbench.oci.bucket_address import parse_image_bucket

        place = BucketPlace(parse_image_bucket(to), repository, public=public)
        place.require_bucket()  # before the image is read from the engine, which may take minutes
        return place
    if public:
        raise FlagbenchError("--public is for a bucket", remedy="leave it out: a registry has its own permissions")
    if not is_prefix(to):
        raise FlagbenchError(
            f"--to cannot be {to!r}", remedy="write HOST[:PORT][/PATH] with a path in lower case, or s3://BUCKET"
        )
    if is_on_docker_hub(f"{to}/{repository}"):
        raise FlagbenchError(
            f"--to cannot be {to!r}: that is Docker Hub, where a repository cannot be named .../{repository}",
            remedy="name the host of another registry, HOST[:PORT][/PATH], or a bucket, s3://BUCKET",
        )
    return RegistryPlace(f"{to}/{repository}")


def _compression(text: str) -> Compression:
    found = next((each for each in COMPRESSIONS if each == text), None)
    if found is None:
        raise FlagbenchError(f"--compression cannot be {text!r}", remedy=f"use {' or '.join(COMPRESSIONS)}")
    return found
