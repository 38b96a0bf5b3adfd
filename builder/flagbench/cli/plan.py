"""`flagbench plan`: shows the layouts of a split model, and whether they fit into memory. It uses no device."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from flagbench import complete
from flagbench.cli.options import JsonOption, WideOption
from flagbench.console.output import echo_json, print_page
from flagbench.manifests.fields import Precision
from flagbench.manifests.load import load_catalog_without_claims
from flagbench.plan.page import make_plan
from flagbench.runs.request import RunOptions


def command(
    case_name: Annotated[
        str,
        typer.Argument(
            metavar="CASE[:STACK]",
            autocompletion=complete.cases,
            help="For example llama2-70b, or llama2-70b:c500-maca3.",
        ),
    ],
    gpus: Annotated[int, typer.Option(min=1, help="Number of devices of all nodes.")],
    mem: Annotated[
        float | None, typer.Option(metavar="GIB", help="Memory of a device. Default: that of the stack's devices.")
    ] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Tensor parallelism stays inside a node. Default: 8, or all.")
    ] = None,
    preset: Annotated[
        Literal["reference", "tiny"],
        typer.Option(help="The published size, or a tiny one that takes seconds."),
    ] = "reference",
    precision: Annotated[Precision | None, typer.Option(help="Default: the case's own.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a hyper-parameter, or fix tp or pp; repeatable."),
    ] = None,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the layouts of a split model, and whether they fit into the devices' memory; those that fit first.

    Memory is predicted for the fullest pipeline stage. The prediction is off by more than 10 % for 8 of 17 published
    rows, by 21 % at most. batch_size is that of a replica, as in the case's manifest, so a step has batch_size x dp
    samples. Unless recompute is set, each layout has the least recomputation with which it fits.

    --json prints {"case", "stack", "preset", "precision", "devices", "devices_per_node", "memory_gib",
    "sequence_length", "micro_batch_size", "batch_size", "layouts": [{"tp", "pp", "dp", "recompute", "global_batch",
    "fits", "tight", "memory": {"tensors", "in_use"}}], "command"}; memory is in bytes. command, which runs the first
    layout, is null where none fits.

    Exits 0, or 5 if no layout fits.
    """
    # The sentence on the prediction above is plan.page.PREDICTION_ERROR, and a test compares the two.
    options = RunOptions(preset=preset, precision=precision, set_=tuple(set_ or ()))
    plan = make_plan(
        case_name,
        load_catalog_without_claims(),
        devices=gpus,
        per_node=gpus_per_node,
        memory_gib=mem,
        options=options,
    )
    if as_json:
        echo_json(plan.to_dict())
    else:
        print_page(*plan.page(), wide=wide)
    plan.require_fit()
