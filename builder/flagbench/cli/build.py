"""`flagbench build`: builds the images of cases and stacks. A stack is the software for a family of devices."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from flagbench import complete
from flagbench.cli.options import JsonOption
from flagbench.console.output import echo_json
from flagbench.console.progress import Progress
from flagbench.images.build import build_images
from flagbench.images.build_options import BuildOptions
from flagbench.images.docker import open_engine
from flagbench.images.render.image import find_target
from flagbench.manifests.load import load_catalog_without_claims


def command(
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="CASE:STACK|STACK",
            autocompletion=complete.images,
            help="For example distilbert:cpu. STACK builds only the image on which the stack's cases are built.",
        ),
    ],
    base: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE",
            envvar="FLAGBENCH_BASE",
            help="Build on this image instead of the base in the stack's lock file. A name or an id.",
        ),
    ] = None,
    pip_source: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            envvar="FLAGBENCH_PIP_SOURCE",
            help="Default index of Python packages. Further values replace the stack's additional indexes.",
        ),
    ] = None,
    apt_source: Annotated[
        str | None,
        typer.Option(
            metavar="URL|FILE",
            envvar="FLAGBENCH_APT_SOURCE",
            help="Mirror of the Linux distribution, or a sources.list file.",
        ),
    ] = None,
    ca_bundle: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="FLAGBENCH_CA_BUNDLE",
            help="Certificates (PEM) that this network needs, such as a proxy's.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    wheelhouse: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            envvar="FLAGBENCH_WHEELHOUSE",
            help="Install Python packages from this folder of wheels; see docs/build-images.md.",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Run every step again, instead of using the engine's cache.")
    ] = False,
    allow_unlocked: Annotated[
        bool,
        typer.Option("--allow-unlocked", help="Build although the stack's lock file leaves something unresolved."),
    ] = False,
    source: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Address of the images' source code, for the label org.opencontainers.image.source.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but the images' ids.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Build images, each on its stack's image.

    An image that exists already, with everything it was made from unchanged, is left as it is.

    Builds run through the docker command, with BuildKit: the first on PATH that can, or the one that FLAGBENCH_DOCKER
    names. Its progress goes to stderr. Indexes, mirrors, certificates and wheels are used while a step installs, and
    leave nothing in an image: no address, no certificate, no package file.

    --json prints {"images": [IMAGE, ...]}.

    IMAGE is {image, image_id, context, tags, skipped, base {name, digest}, lock, tiers: [TIER, ...]}.

    TIER is {tier, image_id, context, tags, skipped, seconds}.

    Exit codes: 2 usage, 7 interrupted, 8 a build failed, 15 engine.
    """
    options = BuildOptions(
        base=base,
        pip_source=tuple(pip_source or ()),
        apt_source=apt_source,
        ca_bundle=ca_bundle,
        wheelhouse=wheelhouse,
        no_cache=no_cache,
        allow_unlocked=allow_unlocked,
        source_url=source,
    )
    catalog = load_catalog_without_claims()
    targets = [find_target(image, catalog) for image in images]
    progress = Progress(quiet=quiet or as_json)
    with closing(open_engine()) as engine:
        results = list(build_images(targets, catalog, options, engine, progress))
    if as_json:
        echo_json({"images": [result.as_json() for result in results]})
        return
    for result in results:
        top = result.top  # the last tier is the image itself; the others are built on the way to it
        if quiet:
            print(top.image_id)
        elif top.skipped:
            print(f"{top.tier.tags[0]}  up to date  {top.image_id}")
        else:
            print(f"{top.tier.tags[0]}  built  {top.image_id}")
