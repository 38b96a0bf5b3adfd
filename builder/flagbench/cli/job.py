"""`flagbench job`: prints a job that runs a case on a cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
import yaml

from flagbench import complete
from flagbench.console.output import check_outputs, write_output
from flagbench.errors import FlagbenchError
from flagbench.fleet.hosts import check_node_names, read_hosts
from flagbench.manifests.load import load_catalog_without_claims
from flagbench.manifests.lookup import require_image, resolve_image
from flagbench.options import takes_options, words
from flagbench.runs.launchers.job_request import EachNode, JobOptions, JobRequest, Scheduler
from flagbench.runs.launchers.kubernetes import KubernetesOptions, KubernetesRequest
from flagbench.runs.launchers.slurm import SlurmOptions, SlurmRequest
from flagbench.runs.request import RunOptions


@takes_options
def command(
    run: RunOptions,
    job: JobOptions,
    kubernetes: KubernetesOptions,
    slurm: SlurmOptions,
    image_name: Annotated[
        str, typer.Argument(metavar="CASE:STACK", autocompletion=complete.images, help="For example distilbert:cpu.")
    ],
    for_: Annotated[Scheduler, typer.Option("--for", help="The scheduler.")] = Scheduler.KUBERNETES,
    each_node: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|-", help="Print a job for each node of a list, a name a line. For Slurm, pipe it into `sh`."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write there, not to stdout.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one List. Kubernetes only.")] = False,
) -> None:
    """Print a job that runs a case on a cluster: for `kubectl apply -f -`, or a batch script for `sbatch`.

    The options of a run are those of `flagbench run`. To accept nodes, see `flagbench job accept --help`.
    """
    if for_ is Scheduler.SLURM and as_json:
        raise FlagbenchError("--json is for Kubernetes", remedy="leave it out, and pipe the script into `sbatch`")
    check_outputs({"--out": out})
    case, stack = resolve_image(image_name, load_catalog_without_claims())
    nodes = None
    if each_node is not None:
        nodes = read_each_node(each_node)
    request: JobRequest
    if for_ is Scheduler.KUBERNETES:
        _refuse_options(words(slurm), Scheduler.SLURM)
        request = KubernetesRequest(case, stack, run, job, kubernetes, nodes)
    else:
        _refuse_options(words(kubernetes), Scheduler.KUBERNETES)
        request = SlurmRequest(case, stack, run, job, slurm, nodes)
    if request.image is not None:
        require_image(case, stack)
    text = request.render()
    for warning in request.warnings():
        typer.echo(f"warning: {warning}", err=True)
    if as_json:
        text = _json_list(text)
    if out is None:
        print(text, end="")
        return
    write_output(out, text.encode())
    typer.echo(f"wrote {out}", err=True)


def _refuse_options(option_words: Sequence[str], scheduler: Scheduler) -> None:
    """Raise FlagbenchError (USAGE) for options, as words of the command, that only this other scheduler has."""
    if option_words:
        option = option_words[0].partition("=")[0]
        raise FlagbenchError(f"{option} is an option of --for {scheduler.value} alone", remedy="leave it out")


def read_each_node(path: Path) -> EachNode:
    """The nodes of --each-node. Raises FlagbenchError (USAGE) for an unusable list or name."""
    names = read_hosts(path, "--each-node")
    check_node_names(names, "--each-node")
    return EachNode(names, str(path))


def _json_list(text: str) -> str:
    """The documents of a Kubernetes job as one List in JSON."""
    items = list(yaml.safe_load_all(text))
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2) + "\n"
