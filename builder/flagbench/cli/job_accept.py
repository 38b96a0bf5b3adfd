"""`flagbench job accept`: prints a script that accepts each node of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flagbench.accept.batch import AcceptJobs
from flagbench.accept.options import AcceptOptions
from flagbench.cli.job import read_each_node
from flagbench.cli.options import StoreOption
from flagbench.errors import FlagbenchError
from flagbench.options import takes_options
from flagbench.runs.launchers.schedulers import Scheduler


@takes_options
def command(
    options: AcceptOptions,
    each_node: Annotated[Path, typer.Option(metavar="FILE|-", help="The nodes to accept, a name a line.")],
    for_: Annotated[Scheduler, typer.Option("--for", help="Only slurm: images have no `accept`.")],
    store: StoreOption = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="The folder of the nodes that gets the certificates.")
    ] = Path("certificates"),
) -> None:
    """Print a script that submits a Slurm job for each node, which runs `flagbench accept` natively.

    Pipe it into `sh`. The options are those of `flagbench accept`. A job ends with its exit code: 0 to use the node,
    9 to drain it, 11 to run again; `flagbench fleet` compares the nodes.
    """
    if for_ is not Scheduler.SLURM:
        raise FlagbenchError(
            f"images have no `accept`, so there is no such job for {for_.value}",
            remedy="make records with `flagbench job roofs:STACK --each-node FILE --store URL`, and certificates of "
            "them with `flagbench accept --from URL --host NAME`",
        )
    nodes = read_each_node(each_node)
    print(AcceptJobs(options, nodes, store, str(out)).render(), end="")
