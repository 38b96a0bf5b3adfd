"""`flagbench prepare`: make the folders that a case's runs read out of what was downloaded."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from flagbench.cli import complete

if TYPE_CHECKING:
    from flagbench.catalog.model import Case, Catalog, Stack


class Via(str, Enum):
    """Where it is converted."""

    NATIVE = "native"
    DOCKER = "docker"


def command(
    image: Annotated[
        str,
        typer.Argument(metavar="CASE[:STACK]", autocompletion=complete.images, help="For example glm, or glm:cpu."),
    ],
    out: Annotated[str, typer.Option("--out", "-o", metavar="OUT", help="Where to write data/ and weights/.")],
    data: Annotated[str | None, typer.Option(metavar="SRC", help="The downloaded data, a file or a folder.")] = None,
    weights: Annotated[
        str | None, typer.Option(metavar="SRC", help="The downloaded weights, a file or a folder.")
    ] = None,
    vocabulary: Annotated[
        str | None, typer.Option(metavar="FILE", help="The tokenizer's file, where the data are text.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Take every sum of what is prepared in OUT; write nothing.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace what was prepared in OUT before.")] = False,
    via: Annotated[
        Via | None, typer.Option(help="In this Python, or in a container without a network. Default: native.")
    ] = None,
    image_: Annotated[
        str | None, typer.Option("--image", metavar="REF", help="With docker: another image than usual.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a summary.")] = False,
) -> None:
    """Make the folders that a case's runs read out of what was downloaded.

    Nothing is fetched: docs/prepare-data.md says what each case takes and where it is. A folder appears whole or not
    at all; what was prepared before is replaced with --force alone. `flagbench run --data OUT` then finds both
    folders.

    --json prints {"case", "folders": {"data": {"folder", "format", "digest", "files", "facts", "sources",
    "licence"}, "weights": ...}, "run": COMMAND}.

    Ends with 0 done, 2 usage, 3 data or weights, 5 out of memory, 7 interrupted, 14 the disk is full, 15 container
    engine.
    """
    from flagbench.catalog.load import load_catalog
    from flagbench.cli.output import echo
    from flagbench.errors import FlagbenchError
    from flagbench.launchers.prepare import PrepareRequest, prepare_in_container, prepare_native

    case, stack = _case_and_stack(image, load_catalog(claims=False))
    if via is Via.NATIVE and image_ is not None:
        raise FlagbenchError("--image needs a container, which --via native does not use", remedy="use --via docker")
    request = PrepareRequest(case, stack, out, data, weights, vocabulary, check, force, as_json)
    if via is Via.DOCKER or image_ is not None:
        done = prepare_in_container(request, image_)
    else:
        done = prepare_native(request)
    if done.printed:
        echo(done.printed.decode("utf-8", "replace").rstrip("\n"))
    if done.exit_code:
        raise typer.Exit(done.exit_code)


def _case_and_stack(image: str, catalog: Catalog) -> tuple[Case, Stack]:
    """`CASE:STACK`, or a case alone, which any stack that runs it can prepare: cpu first."""
    from flagbench.catalog.lookup import catalog_get, resolve_image
    from flagbench.errors import FlagbenchError

    if ":" in image:
        return resolve_image(image, catalog)
    case = catalog_get(catalog.cases, image, kind="case")
    able = sorted(
        (s for s in catalog.stacks.values() if case.name in s.runs), key=lambda s: (s.name != "cpu", s.name)
    )
    if not able:
        raise FlagbenchError(f"no stack runs {case.name}", remedy="name one: CASE:STACK")
    return case, able[0]
