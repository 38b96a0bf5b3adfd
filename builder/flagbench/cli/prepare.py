"""`flagbench prepare`: converts downloaded data and weights into the folders that the runs of a case read."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from flagbench import complete
from flagbench.console.progress import Progress
from flagbench.errors import FlagbenchError
from flagbench.image_reference import case_and_stack
from flagbench.manifests.load import load_catalog_without_claims
from flagbench.manifests.lookup import catalog_get, resolve_image
from flagbench.manifests.model import Case, Catalog
from flagbench.manifests.stack import Stack
from flagbench.options import takes_options
from flagbench.runs.launchers.prepare import prepare_in_container, prepare_native
from flagbench.runs.prepare_request import PrepareOptions, PrepareRequest


@takes_options
def command(
    image_name: Annotated[
        str,
        typer.Argument(metavar="CASE[:STACK]", autocompletion=complete.images, help="For example glm, or glm:cpu."),
    ],
    options: PrepareOptions,
    via: Annotated[
        Literal["docker", "native"] | None,
        typer.Option(help="In this Python, or in a container without a network. Default: native."),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            "--image", metavar="REF", help="With docker: another image than usual, also s3://BUCKET/NAME:TAG."
        ),
    ] = None,
) -> None:
    """Convert downloaded data and weights into the folders that runs read, or verify such folders.

    Nothing is downloaded: docs/data-and-weights.md says what each case takes and where it is. A folder is made
    completely or not at all; what was prepared before is replaced only with --force. `flagbench run --data OUT` then
    finds both folders.

    --json prints {"case", "folders": {"data": {"folder", "format", "digest", "files", "facts", "sources",
    "licence"}, "weights": ...}, "run": COMMAND}.

    Ends with 0 done, 2 usage, 3 data or weights, 5 out of memory, 7 interrupted, 14 the disk is full, 15 container
    engine.
    """
    case, stack = _case_and_stack(image_name, load_catalog_without_claims())
    if via == "native" and image is not None:
        raise FlagbenchError("--image needs a container, which --via native does not use", remedy="use --via docker")
    request = PrepareRequest(case, stack, options)
    in_container = via == "docker" or image is not None
    if in_container:
        printed, code = prepare_in_container(request, image, progress=Progress())
    else:
        printed, code = prepare_native(request)
    if printed:
        print(printed.decode("utf-8", "replace").rstrip("\n"))
    if code:
        raise typer.Exit(code)


def _case_and_stack(image: str, catalog: Catalog) -> tuple[Case, Stack]:
    """The case and stack of `CASE:STACK`. For a case alone, a stack that runs it: cpu if possible, else the first."""
    name, stack = case_and_stack(image)
    if stack or image.endswith(":"):
        return resolve_image(image, catalog)
    case = catalog_get(catalog.cases, name, kind="case")
    stacks = {stack.name: stack for stack in catalog.stacks.values() if case.name in stack.runs}
    if not stacks:
        raise FlagbenchError(f"no stack runs {case.name}", remedy="name one: CASE:STACK")
    if "cpu" in stacks:
        return case, stacks["cpu"]
    return case, stacks[min(stacks)]
