"""`flagbench job`: prints or submits a job that runs a case in a cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from flagbench import complete
from flagbench.console.output import check_outputs, echo_json, write_output
from flagbench.console.terminal import visible
from flagbench.errors import FlagbenchError
from flagbench.fleet.hosts import check_node_names, read_hosts
from flagbench.manifests.load import load_catalog_without_claims
from flagbench.manifests.lookup import require_image, resolve_image
from flagbench.options import takes_options, words
from flagbench.runs.launchers.job_request import EachNode, JobOptions, JobRequest, Scheduler
from flagbench.runs.launchers.kubernetes import KubernetesOptions, KubernetesRequest, submit
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
    send: Annotated[
        bool,
        typer.Option(
            "--submit", help="Apply it to the cluster that kubectl is pointed at; print no job. Kubernetes only."
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: one List, or what --submit made. Kubernetes only.")
    ] = False,
) -> None:
    """Print a job that runs a case on a cluster: for `kubectl apply -f -`, or a batch script for `sbatch`.

    The options of a run are those of `flagbench run`. Only --submit creates anything in a cluster. To accept nodes,
    see `flagbench job accept --help`.
    """
    if for_ is Scheduler.SLURM and (send or as_json):
        raise FlagbenchError(
            "--submit and --json are for Kubernetes", remedy="leave them out, and pipe the script into `sbatch`"
        )
    if send and out is not None:
        raise FlagbenchError("--out and --submit contradict each other", remedy="give one of them")
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
    if send:
        message = submit(text)
        if isinstance(request, KubernetesRequest) and as_json:
            echo_json(_submitted(request))
        else:
            print(visible(message))
        return
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


def _submitted(request: KubernetesRequest) -> dict[str, Any]:
    """What --submit made, as JSON: the job, or with --each-node those of all nodes."""
    if request.each_node is None:
        return {"job": request.job_name, "run_id": request.run_id}
    jobs = [{"node": job.node, "job": job.name, "run_id": job.run_id} for job in request.jobs()]
    return {"jobs": jobs}


def _json_list(text: str) -> str:
    """The documents of a Kubernetes job as one List in JSON."""
    items = list(yaml.safe_load_all(text))
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2) + "\n"
