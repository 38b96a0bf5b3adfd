"""`flagbench run`: run a case, keep its record, and show it beside the published row."""

from __future__ import annotations

import sys
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from flagbench.cli import complete, preview
from flagbench.cli.options import WideOption

if TYPE_CHECKING:
    from flagbench.catalog.model import Case, Catalog, Stack
    from flagbench.launchers import Launcher, LaunchResult
    from flagbench.record.model import Record
    from flagbench.stores import Store


class Via(str, Enum):
    """How an image is run."""

    DOCKER = "docker"
    NATIVE = "native"


class Preset(str, Enum):
    """How large the case is."""

    REFERENCE = "reference"
    TINY = "tiny"


class Division(str, Enum):
    """As the publisher did it, or the same mathematics done well."""

    FAITHFUL = "faithful"
    TUNED = "tuned"


class Precision(str, Enum):
    """What matrix products run in."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"


def command(
    image: Annotated[
        str,
        typer.Argument(metavar="CASE:STACK", autocompletion=complete.images, help="For example distilbert:cpu."),
    ],
    nodes: Annotated[int, typer.Option(min=1, help="Number of nodes.")] = 1,
    gpus: Annotated[int, typer.Option(min=1, help="Processes per node; ranks on cpu.")] = 1,
    via: Annotated[
        Via | None,
        typer.Option(help="In a container, or in this Python. Default: native for the stack cpu, else docker."),
    ] = None,
    preset: Annotated[
        Preset, typer.Option(help="The published size, or seconds of the same code.")
    ] = Preset.REFERENCE,
    division: Annotated[
        Division, typer.Option(help="Which way of doing the work; no case has tuned yet.")
    ] = Division.FAITHFUL,
    precision: Annotated[Precision | None, typer.Option(help="Default: the case's own.")] = None,
    data: Annotated[str | None, typer.Option(metavar="DIR|synthetic", help="Prepared data.")] = None,
    weights: Annotated[str | None, typer.Option(metavar="DIR", help="A checkpoint folder. Default: random.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Measure that many steps after the warm-up.")] = None,
    max_samples: Annotated[int | None, typer.Option(min=1, help="The same, in samples of all devices.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Run to the published stop rule on any data.")] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="Default: the case's.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a hyper-parameter; repeatable."),
    ] = None,
    max_minutes: Annotated[float | None, typer.Option(help="End the run after that many minutes.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds without progress that count as a hang.")] = None,
    node_rank: Annotated[int | None, typer.Option(min=0, help="Which node this is, of several.")] = None,
    master: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where node 0 listens.")] = None,
    run_id: Annotated[str | None, typer.Option(help="Name of the run, the same on all nodes.")] = None,
    out: Annotated[str | None, typer.Option(metavar="DIR", help="Write the record there as well.")] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="DIR", help="Resume from a checkpoint, if the case writes any.")
    ] = None,
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="Where records are kept. Default: FLAGBENCH_STORE.")
    ] = None,
    claim: Annotated[
        str | None,
        typer.Option(autocompletion=complete.claims, help="The claim to show beside it. Default: the nearest."),
    ] = None,
    image_: Annotated[
        str | None,
        typer.Option("--image", metavar="REF", help="With docker: another image than usual."),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="With docker: the container's memory, like 64g; no swap.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="With docker: leave the container when it has ended.")] = False,
    show_command: Annotated[
        bool,
        typer.Option("--show-command", help="With docker: print the line that does the same, run nothing."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run and how long it should take; run nothing.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Run the reference preset on a processor without asking.")
    ] = False,
    wide: WideOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record instead of a table.")] = False,
) -> None:
    """Run a case, keep its record in the store, and show it beside the published row.

    Ends with the run's own exit code: 0 done, 2 usage, 3 data, 4 a rank failed, 5 out of memory, 6 timeout or hang,
    7 interrupted, 12 a check of its own failed, 13 wrong hardware, 14 measured but not stored, 15 container engine.
    Only `verify` exits by its verdict. With docker the image must exist; none is built or pulled.
    """
    from flagbench.catalog.load import load_catalog
    from flagbench.catalog.lookup import catalog_get, resolve_image
    from flagbench.cli.output import NotPrinted
    from flagbench.errors import ExitCode, FlagbenchError
    from flagbench.launchers import RunRequest
    from flagbench.launchers.describe import describe
    from flagbench.launchers.estimate import estimate
    from flagbench.stores import open_store

    catalog = load_catalog()
    case, stack = resolve_image(image, catalog)
    if claim is not None and catalog_get(catalog.claims, claim, kind="claim").case != case.name:
        raise FlagbenchError(
            f"the claim {claim} is not of the case {case.name}",
            remedy=f"name a claim of {case.name}; `flagbench list claims` shows them",
        )
    keeper = _usable(open_store(store))
    request = RunRequest(
        case,
        stack,
        nodes=nodes,
        gpus=gpus,
        preset=preset.value,
        division=division.value,
        precision=None if precision is None else precision.value,
        data=data,
        weights=weights,
        steps=steps,
        max_samples=max_samples,
        full=full,
        seed=seed,
        settings=tuple(set_ or ()),
        max_minutes=max_minutes,
        timeout=timeout,
        node_rank=node_rank,
        master=master,
        run_id=run_id,
        out=out,
        resume=resume,
    )
    only_docker = {"--image": image_, "--memory": memory, "--keep": keep, "--show-command": show_command}
    way = _way(via, stack, [name for name, value in only_docker.items() if value])
    if not (dry_run or show_command):
        preview.announce(request, way.value)
    launcher: Launcher = _native() if way is Via.NATIVE else _docker(image_, memory, keep)
    described = describe(request, container=way is Via.DOCKER)
    line = launcher.command(request)
    if show_command:
        typer.echo(line)
        return
    if dry_run or preview.asks(request, yes=yes):
        expected = estimate(described, stack, keeper, catalog.claims.values())
        if dry_run:
            image_name = None if way is Via.NATIVE else image_ or f"flagbench/{case.name}:{stack.name}"
            shown = preview.facts(request, described, expected, image=image_name, command=line)
            preview.show(request, shown, as_json=as_json)
            return
        preview.confirm(expected)
    result = launcher.launch(request)
    if not result.record.strip() or _refused(result):
        raise typer.Exit(result.exit_code)
    kept = _keep(result, keeper)
    try:
        # A record that could not be stored is printed: it cost a run.
        if as_json or not kept:
            typer.echo(result.record.decode("utf-8", "replace").rstrip("\n"))
        else:
            _show(result, catalog, case, claim, wide=wide)
        sys.stdout.flush()
    except NotPrinted as error:
        if not kept:
            raise
        # It is stored: a failure to show it does not change how the run ended.
        typer.echo(f"error: {error.message}\nfix: the record is kept; `flagbench results show last`", err=True)
    raise typer.Exit(result.exit_code or (0 if kept else int(ExitCode.NOT_STORED)))


def _way(via: Via | None, stack: Stack, only_docker: list[str]) -> Via:
    """How to run, from what was asked and what the stack is. Raises FlagbenchError (usage) for a contradiction."""
    from flagbench.errors import FlagbenchError

    if via is Via.NATIVE and only_docker:
        raise FlagbenchError(
            f"{only_docker[0]} needs a container, which --via native does not use", remedy="use --via docker"
        )
    if via is not None:
        return via
    return Via.NATIVE if stack.device_kind == "cpu" and not only_docker else Via.DOCKER


def _native() -> Launcher:
    from flagbench.launchers.native import NativeLauncher

    return NativeLauncher()


def _docker(image: str | None, memory: str | None, keep: bool) -> Launcher:
    from flagbench.launchers.container import DockerOptions
    from flagbench.launchers.docker import DockerLauncher

    return DockerLauncher(DockerOptions(image, memory, keep), shows=preview.progress_environment())


def _refused(result: LaunchResult) -> bool:
    """Whether the image refused its arguments, as another version of it may: that is no run, and is not stored."""
    import json

    try:
        return bool(json.loads(result.record)["status"]["phase"] == "usage")
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _usable(store: Store) -> Store:
    """The store itself. Raises FlagbenchError (usage) where it takes no record now: that should not cost a run."""
    from flagbench.errors import FlagbenchError

    health = store.health()
    if not health.writable:
        raise FlagbenchError(
            f"the store can keep no record: {health.detail}",
            remedy=health.remedy or "name another store with --store",
        )
    return store


def _keep(result: LaunchResult, store: Store) -> bool:
    """Put the record into the store; False, with the reason on stderr, where it could not be kept."""
    from flagbench.errors import FlagbenchError

    try:
        kept = store.put(result.record)
    except FlagbenchError as error:
        typer.echo(f"error: {error.message}\nfix: {error.remedy}; the record is on stdout", err=True)
        return False
    typer.echo(f"record {kept.record_id} kept in {kept.location}", err=True)
    return True


def _show(result: LaunchResult, catalog: Catalog, case: Case, claim: str | None, *, wide: bool) -> None:
    """The same table as `verify` shows; the verdict does not decide the exit code."""
    from flagbench.record.read import read_record
    from flagbench.report import verdict_table
    from flagbench.verify import choose_claim, verify_claim

    record: Record = read_record(result.record)
    claims = [c for c in catalog.claims.values() if c.case == case.name]
    against = (
        None if not claims else catalog.claims[claim] if claim is not None else choose_claim(record, case, claims)
    )
    verdict = None if against is None else verify_claim([record], against, case, chosen=claim is None)
    typer.echo(verdict_table([record], verdict, wide=wide), nl=False)
