"""`flagbench job`: prints or submits a job that runs a case in a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
import yaml

from flagbench import complete
from flagbench.console.output import echo_json
from flagbench.console.terminal import visible
from flagbench.errors import FlagbenchError
from flagbench.manifests.load import load_catalog_without_claims
from flagbench.manifests.lookup import require_base, resolve_image
from flagbench.options import takes_options
from flagbench.runs.launchers.kubernetes import JobOptions
from flagbench.runs.launchers.schedulers import SCHEDULERS, Scheduler
from flagbench.runs.request import RunOptions
from flagbench.system.files import reason, write_atomically


@takes_options
def command(
    run: RunOptions,
    job: JobOptions,
    image_name: Annotated[
        str, typer.Argument(metavar="CASE:STACK", autocompletion=complete.images, help="For example distilbert:cpu.")
    ],
    for_: Annotated[Scheduler, typer.Option("--for", help="What to print it for.")] = Scheduler.KUBERNETES,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write there, not to stdout.")
    ] = None,
    send: Annotated[
        bool, typer.Option("--submit", help="Apply it to the cluster that kubectl is pointed at; print no job.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one List, or what --submit made.")] = False,
) -> None:
    """Print a Kubernetes job that runs a case, for `kubectl apply -f -`.

    The image's own arguments mean what they mean for `flagbench run`. Only --submit creates anything in a cluster.
    """
    if send and out is not None:
        raise FlagbenchError("--out and --submit contradict each other", remedy="give one of them")
    scheduler = SCHEDULERS[for_]
    case, stack = resolve_image(image_name, load_catalog_without_claims())
    require_base(stack)
    request = scheduler.JobRequest(case, stack, run, job)
    text = scheduler.render_job(request)
    for warning in request.warnings():
        typer.echo(f"warning: {warning}", err=True)
    if send:
        message = scheduler.submit(text)
        if as_json:
            echo_json({"job": request.job_name, "run_id": request.run_id})
        else:
            print(visible(message))
        return
    if as_json:
        items = list(yaml.safe_load_all(text))
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2) + "\n"
    if out is None:
        print(text, end="")
        return
    try:
        write_atomically(out, text.encode())
    except OSError as error:
        raise FlagbenchError(f"--out {out} cannot be written: {reason(error)}", remedy="name another file") from None
    typer.echo(f"wrote {out}", err=True)
