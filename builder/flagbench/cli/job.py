"""`flagbench job`: a case as a job for a cluster, printed; or a job that a person edited, checked."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flagbench.cli import complete

if TYPE_CHECKING:
    from flagbench.jobs import JobRequest
    from flagbench.jobs.problems import Problem


class Target(str, Enum):
    """What a job is printed for."""

    KUBERNETES = "kubernetes"


Text = str | None
Texts = list[str] | None


def command(
    context: typer.Context,
    image: Annotated[
        Text, typer.Argument(metavar="CASE:STACK", autocompletion=complete.images, help="For example distilbert:cpu.")
    ] = None,
    for_: Annotated[Target | None, typer.Option("--for", help="What to print it for.")] = None,
    nodes: Annotated[int, typer.Option(help="Number of nodes: pods, each on a node of its own.")] = 1,
    gpus: Annotated[int, typer.Option(help="Devices, and processes, of each pod; ranks on cpu.")] = 1,
    preset: Annotated[Text, typer.Option(metavar="reference|tiny", help="Default: reference.")] = None,
    division: Annotated[
        Text, typer.Option(metavar="faithful|tuned", help="Default: faithful; no case has tuned yet.")
    ] = None,
    precision: Annotated[Text, typer.Option(metavar="fp32|tf32|fp16|bf16", help="Default: the case's own.")] = None,
    data: Annotated[Text, typer.Option(metavar="synthetic", help="Default: what is at /data, if anything.")] = None,
    steps: Annotated[int | None, typer.Option(help="Measure that many steps after the warm-up.")] = None,
    max_samples: Annotated[int | None, typer.Option(help="The same, in samples of all devices.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Run to the published stop rule on any data.")] = False,
    seed: Annotated[int | None, typer.Option(help="Default: the case's.")] = None,
    set_: Annotated[
        Texts, typer.Option("--set", metavar="KEY=VALUE", help="Change a hyper-parameter; repeatable.")
    ] = None,
    max_minutes: Annotated[
        float | None, typer.Option(help="The run ends itself. Default: half an hour before --deadline.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds without progress that count as a hang.")] = None,
    run_id: Annotated[Text, typer.Option(help="Name of the run, for all nodes. Default: a new one.")] = None,
    name: Annotated[Text, typer.Option(help="Name of the job. Default: of case, stack and run.")] = None,
    namespace: Annotated[Text, typer.Option(help="Default: the one that kubectl is pointed at.")] = None,
    image_ref: Annotated[
        Text, typer.Option("--image", metavar="REF", help="Image, with its tag or digest. Default: this version's.")
    ] = None,
    registry: Annotated[Text, typer.Option(metavar="HOST[/PATH]", help="Where the default image was pushed.")] = None,
    pull_policy: Annotated[
        Text, typer.Option(metavar="Always|IfNotPresent|Never", help="Default: IfNotPresent.")
    ] = None,
    pull_secret: Annotated[Texts, typer.Option(metavar="NAME", help="Secret of the registry; repeatable.")] = None,
    cpu: Annotated[Text, typer.Option(metavar="QUANTITY", help="Processors of a pod. Default: the stack's.")] = None,
    memory: Annotated[Text, typer.Option(metavar="QUANTITY", help="Memory of a pod, /dev/shm included.")] = None,
    shm: Annotated[Text, typer.Option(metavar="QUANTITY", help="Size of /dev/shm.")] = None,
    rdma_resource: Annotated[
        Texts, typer.Option(metavar="NAME=COUNT", help="RDMA devices of a pod, by the cluster's name; repeatable.")
    ] = None,
    node_label: Annotated[
        Texts, typer.Option(metavar="KEY=VALUE[,VALUE]", help="Nodes to use, instead of the stack's; repeatable.")
    ] = None,
    group: Annotated[
        list[int] | None, typer.Option(metavar="GID", help="Further group of the process; repeatable.")
    ] = None,
    data_pvc: Annotated[Text, typer.Option(metavar="NAME[:SUBPATH]", help="Claim read at /data.")] = None,
    weights_pvc: Annotated[Text, typer.Option(metavar="NAME[:SUBPATH]", help="Claim read at /weights.")] = None,
    out_pvc: Annotated[Text, typer.Option(metavar="NAME[:SUBPATH]", help="Claim for the record, at /out.")] = None,
    resume_pvc: Annotated[
        Text, typer.Option(metavar="NAME[:SUBPATH]", help="Claim with checkpoints to resume from, at /resume.")
    ] = None,
    env: Annotated[Texts, typer.Option(metavar="NAME=VALUE", help="Variable, no secret; repeatable.")] = None,
    env_from_secret: Annotated[Texts, typer.Option(metavar="NAME", help="Secret with variables; repeatable.")] = None,
    label: Annotated[Texts, typer.Option(metavar="KEY=VALUE", help="Label of everything; repeatable.")] = None,
    annotation: Annotated[Texts, typer.Option(metavar="KEY=VALUE", help="Annotation of pods; repeatable.")] = None,
    queue: Annotated[Text, typer.Option(metavar="NAME", help="Kueue's LocalQueue: the job waits there.")] = None,
    deadline: Annotated[
        int | None,
        typer.Option(metavar="SECONDS", help="The cluster ends it. Default: --max-minutes + 1800, else 14400."),
    ] = None,
    ttl: Annotated[
        int | None, typer.Option(metavar="SECONDS", help="How long the ended job is kept. Default: 12 hours.")
    ] = None,
    port: Annotated[int, typer.Option(help="Where node 0 listens.")] = 29400,
    template: Annotated[Path | None, typer.Option(metavar="FILE", help="Policy other than flagbench's own.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write there, not to stdout.")] = None,
    check: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Print no job: check this one (- is stdin). Exit 2 if wrong.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one List, or what --check found.")] = False,
) -> None:
    """Print a Kubernetes job that runs a case, for `kubectl apply -f -`.

    The image's own arguments mean what they mean for `flagbench run`. Nothing is sent to a cluster.
    """
    from flagbench.errors import FlagbenchError

    if check is not None:
        if image is not None:
            raise FlagbenchError("--check takes a file and no image", remedy="leave out the image, or --check")
        for option in sorted(_given(context) - {"--check", "--json"}):
            raise FlagbenchError(f"{option} means nothing beside --check", remedy=f"leave out {option}, or --check")
        _check(check, as_json)
        return
    if image is None or for_ is None:
        missing = "CASE:STACK" if image is None else "--for"
        raise FlagbenchError(
            f"{missing} is missing", remedy="write `flagbench job distilbert:cpu --for kubernetes --nodes 2`"
        )
    from flagbench.catalog.load import load_catalog
    from flagbench.catalog.lookup import resolve_image
    from flagbench.jobs import ImageArguments, JobRequest
    from flagbench.jobs.request import new_run_id
    from flagbench.jobs.template import template_path

    catalog = load_catalog(claims=False)
    case, stack = resolve_image(image, catalog)
    arguments = ImageArguments(
        preset=preset,
        division=division,
        precision=precision,
        data=data,
        steps=steps,
        max_samples=max_samples,
        full=full,
        seed=seed,
        set_=tuple(set_ or ()),
        max_minutes=max_minutes,
        timeout=timeout,
    )
    request = JobRequest(
        case,
        stack,
        run_id=new_run_id() if run_id is None else run_id,
        nodes=nodes,
        gpus=gpus,
        arguments=arguments,
        name=name,
        namespace=namespace,
        image=image_ref,
        registry=registry,
        pull_policy=pull_policy,
        pull_secret=tuple(pull_secret or ()),
        deadline=deadline,
        ttl=ttl,
        queue=queue,
        data_pvc=data_pvc,
        weights_pvc=weights_pvc,
        out_pvc=out_pvc,
        resume_pvc=resume_pvc,
        rdma_resource=tuple(rdma_resource or ()),
        cpu=cpu,
        memory=memory,
        shm=shm,
        group=tuple(group or ()),
        node_label=tuple(node_label or ()),
        env=tuple(env or ()),
        env_from_secret=tuple(env_from_secret or ()),
        label=tuple(label or ()),
        annotation=tuple(annotation or ()),
        port=port,
        template=None if template is None else str(template),
    )
    text = _text(request, template or template_path(catalog.root), as_json)
    for warning in request.warnings():
        typer.echo(f"warning: {warning}", err=True)
    _print(text, out)


def _given(context: typer.Context) -> set[str]:
    """The options that the command line names, whatever their values."""
    sources = {entry.opts[0]: context.get_parameter_source(entry.name or "") for entry in context.command.params}
    return {option for option, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def _text(request: JobRequest, template: Path, as_json: bool) -> str:
    from flagbench.jobs import job_documents, job_list
    from flagbench.jobs.dump import dump_documents, job_header
    from flagbench.jobs.template import read_template

    documents = job_documents(request, read_template(template))
    if as_json:
        import json

        return json.dumps(job_list(documents), indent=2, allow_nan=False) + "\n"
    return dump_documents(documents, job_header(request.command(), request.image_reference, request.job_name))


def _print(text: str, out: Path | None) -> None:
    from flagbench.cli.output import echo
    from flagbench.errors import FlagbenchError

    if out is None:
        echo(text.rstrip("\n"))
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FlagbenchError(f"{out} cannot be written: {error.strerror}", remedy="name another file") from None
    typer.echo(f"wrote {out}", err=True)


def _check(path: Path, as_json: bool) -> None:
    """Print what is wrong with the documents of a file; exit 2 where anything is."""
    from flagbench.cli.output import echo, echo_json
    from flagbench.errors import ExitCode
    from flagbench.jobs import check_documents
    from flagbench.jobs.read import read_documents
    from flagbench.jobs.schemas import VERSIONS, check_schemas, schemas_installed
    from flagbench.terminal import visible

    documents = read_documents(path)
    versions = VERSIONS if schemas_installed() else ()
    problems = check_documents(documents) + (check_schemas(documents) if versions else [])
    shown = "stdin" if str(path) == "-" else str(path)
    if as_json:
        echo_json({"file": shown, "schemas": list(versions), "problems": [_as_json(p) for p in problems]})
    else:
        for problem in problems:
            echo(visible(f"{shown}: {problem}"))
        against = f"Kubernetes {', '.join(versions)}" if versions else "our own rules alone"
        echo(f"{shown}: {len(problems) or 'no'} problem{'' if len(problems) == 1 else 's'}, held against {against}")
        if not versions:
            typer.echo("for Kubernetes' own schemas: pip install 'flagbench[lint]'", err=True)
    if problems:
        raise typer.Exit(int(ExitCode.USAGE))


def _as_json(problem: Problem) -> dict[str, Any]:
    from flagbench.schema import field_name

    return {
        "document": problem.document,
        "field": field_name(problem.path),
        "message": problem.message,
        "remedy": problem.remedy,
    }
