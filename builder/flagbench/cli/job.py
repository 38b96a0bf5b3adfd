"""`flagbench job`: a case as a job for a cluster, printed; or a job that a person edited, checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from flagbench.catalog.load import load_catalog
from flagbench.catalog.lookup import resolve_image
from flagbench.cli import complete
from flagbench.cli.output import echo_json
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.launchers.kubernetes.check import check_documents
from flagbench.launchers.kubernetes.documents import job_documents, job_list, read_template, template_path
from flagbench.launchers.kubernetes.dump import dump_documents, job_header
from flagbench.launchers.kubernetes.options import JobOptions
from flagbench.launchers.kubernetes.read import read_documents
from flagbench.launchers.kubernetes.request import JobRequest
from flagbench.launchers.kubernetes.schemas import VERSIONS, check_schemas, schemas_installed
from flagbench.launchers.kubernetes.server import check_on_server, submit
from flagbench.options import takes_options
from flagbench.request import RunOptions
from flagbench.schema import field_name
from flagbench.terminal import visible


@takes_options
def command(
    context: typer.Context,
    run: RunOptions,
    job: JobOptions,
    image_name: Annotated[
        str | None,
        typer.Argument(metavar="CASE:STACK", autocompletion=complete.images, help="For example distilbert:cpu."),
    ] = None,
    for_: Annotated[Literal["kubernetes"] | None, typer.Option("--for", help="What to print it for.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write there, not to stdout.")
    ] = None,
    send: Annotated[
        bool, typer.Option("--submit", help="Apply it to the cluster that kubectl is pointed at; print no job.")
    ] = False,
    check: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Print no job: check this one (- is stdin). Exit 2 if wrong.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one List, or what --check found.")] = False,
) -> None:
    """Print a Kubernetes job that runs a case, for `kubectl apply -f -`.

    The image's own arguments mean what they mean for `flagbench run`. Only --submit creates anything in a cluster;
    --check has the documents validated by the server that kubectl is pointed at, if one answers.
    """
    if check is not None:
        for option in sorted(_given(context) - {"--check", "--json"}):
            raise FlagbenchError(f"{option} cannot be used with --check", remedy=f"leave out {option}, or --check")
        _check(check, as_json)
        return
    if image_name is None or for_ is None:
        missing = "CASE:STACK" if image_name is None else "--for"
        raise FlagbenchError(
            f"{missing} is missing", remedy="write `flagbench job distilbert:cpu --for kubernetes --nodes 2`"
        )
    catalog = load_catalog(claims=False)
    request = JobRequest(*resolve_image(image_name, catalog), run, job)
    template = template_path(catalog.root) if job.template is None else Path(job.template)
    documents = job_documents(request, read_template(template))
    for warning in request.warnings():
        typer.echo(f"warning: {warning}", err=True)
    if send:
        if out is not None:
            raise FlagbenchError("--out and --submit contradict each other", remedy="give one of them")
        said = submit(documents)
        if as_json:
            echo_json({"job": request.job_name, "run_id": request.run_id})
        else:
            print(visible(said))
        return
    if as_json:
        text = json.dumps(job_list(documents), indent=2, allow_nan=False) + "\n"
    else:
        text = dump_documents(documents, job_header(request.command(), request.image, request.job_name))
    if out is None:
        print(text.rstrip("\n"))
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FlagbenchError(f"--out {out} cannot be written: {error.strerror}", remedy="name another file") from None
    typer.echo(f"wrote {out}", err=True)


def _given(context: typer.Context) -> set[str]:
    """The options that the command line names, whatever their values; CASE:STACK by its own name."""
    sources = {entry.opts[0]: context.get_parameter_source(entry.name or "") for entry in context.command.params}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    return {name if name.startswith("-") else "CASE:STACK" for name in given}


def _check(path: Path, as_json: bool) -> None:
    """Print what is wrong with the documents of a file; exit 2 where anything is."""
    documents = read_documents(path)
    versions = VERSIONS if schemas_installed() else ()
    problems = check_documents(documents) + (check_schemas(documents) if versions else [])
    server = check_on_server(documents)
    shown = "stdin" if str(path) == "-" else str(path)
    if as_json:
        found = [
            {"document": p.document, "field": field_name(p.path), "message": p.message, "remedy": p.remedy}
            for p in problems
        ]
        answer = {"validated": server.validated, "refused": server.refused, "said": server.said}
        echo_json({"file": shown, "schemas": list(versions), "server": answer, "problems": found})
    else:
        for problem in problems:
            print(visible(f"{shown}: {problem}"))
        for line in server.said.splitlines() if server.validated else ():
            print(visible(f"{shown}: server: {line}"))
        against = ["flagbench's own rules"]
        against += [f"the schemas of Kubernetes {', '.join(versions)}"] * bool(versions)
        against += ["a server"] * server.validated
        count = len(problems) + server.refused
        print(f"{shown}: {count or 'no'} problem{'' if count == 1 else 's'}; checked against {', '.join(against)}")
        if not server.validated:
            typer.echo(f"not validated by a server: {visible(server.said)}", err=True)
        if not versions:
            typer.echo("for Kubernetes' own schemas: pip install 'flagbench[lint]'", err=True)
    if problems or server.refused:
        raise typer.Exit(int(ExitCode.USAGE))
