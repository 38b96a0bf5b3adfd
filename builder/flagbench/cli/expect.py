"""`flagbench expect`: shows what has been published about a case or model on a device."""

from __future__ import annotations

from typing import Annotated

import typer

from flagbench import complete
from flagbench.cli.options import JsonOption, WideOption
from flagbench.console.output import echo_json, print_page
from flagbench.expect.answer import find_published
from flagbench.expect.page import results_page
from flagbench.manifests.load import load_catalog


def command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="CASE|MODEL",
            autocompletion=complete.cases,
            help="For example llama2-70b, or a model of the catalogue, such as llama3.1-8b.",
        ),
    ],
    on: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="For example h100-sxm. Default: the device of this machine.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="Number of devices of all nodes.")] = None,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show what has been published of a case or model for a device, and what comes closest.

    The rows are flagbench's claims, which a case runs as published, and rows that are only cited. Of a model, the
    nearest row of each task comes first, of another device where this one has none, and then that of each further
    project on this device.

    --json prints {"asked", "model", "task", "device", "wanted", "rows": [ROW], "nearest": [ROW], "cases"}. A ROW has
    id, case (of a claim), source, model, task, device, device_id, may_be (ids of devices, where it is not said
    which), precision, devices, nodes, batch, sequence, parallelism, software, file, section, conditions,
    metrics [{name, value, unit}] and differs [{name, here, published}]. "cases" has those that run the model, without
    those that took more memory where they were measured than the device has.

    Exits 0, or 2 for an unknown model or device.
    """
    published = find_published(name, on, gpus, load_catalog())
    if as_json:
        echo_json(published.to_dict())
    else:
        print_page(*results_page(published, wide=wide), wide=wide)
