"""`flagbench job accept`: prints a script that accepts each node of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flagbench.accept.options import AcceptOptions
from flagbench.cli.job import read_each_node
from flagbench.cli.options import StoreOption
from flagbench.errors import FlagbenchError
from flagbench.image_reference import case_and_stack
from flagbench.manifests.load import load_catalog_without_claims
from flagbench.manifests.lookup import catalog_get, get_stack
from flagbench.options import takes_options, words
from flagbench.runs.launchers.job_request import Scheduler, check_words, is_bucket
from flagbench.runs.launchers.slurm import render_script


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

    Pipe it into `sh`. The options are those of `flagbench accept`; a job also asks Slurm for --gpus devices. It ends
    with the exit code of `accept`: 0 to use the node, 9 to drain it, 11 to run again. `flagbench fleet` compares the
    nodes.
    """
    if for_ is not Scheduler.SLURM:
        raise FlagbenchError(
            f"images have no `accept`, so there is no such job for {for_.value}",
            remedy="make records with `flagbench job roofs:STACK --each-node FILE --store URL`, and certificates of "
            "them with `flagbench accept --from URL --host NAME`",
        )
    options.check_minutes()
    on_processor = _runs_on_processor(options.case)
    nodes = read_each_node(each_node)
    arguments = words(options)
    if store is not None:
        is_bucket(store)  # raises for a wrong address
        arguments.append(f"--store={store}")
    typed = ["flagbench", "job", "accept", "--for", "slurm", *arguments, f"--out={out}", f"--each-node={each_node}"]
    check_words(typed)
    gpus = options.gpus
    if on_processor:
        gpus = None  # --gpus is the number of ranks
    elif gpus is None:
        typer.echo("warning: without --gpus, Slurm gives the jobs no GPUs", err=True)
    script = render_script(
        "accept.sh.j2",
        typed,
        nodes,
        name="flagbench-accept",
        nodes=1,
        gpus=gpus,
        minutes=options.total_minutes,
        arguments=arguments,
        folder=out,
    )
    print(script, end="")


def _runs_on_processor(case: str | None) -> bool:
    """Whether --case names a stack of processors. Raises FlagbenchError (USAGE) for an unknown case or stack."""
    if case is None:
        return False
    catalog = load_catalog_without_claims()
    name, stack = case_and_stack(case)
    catalog_get(catalog.cases, name, kind="case")
    return bool(stack) and get_stack(stack, catalog).device_kind == "cpu"
