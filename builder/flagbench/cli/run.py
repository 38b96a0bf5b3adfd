"""`flagbench run`: run a case, keep its record, and show it beside the published row."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from flagbench import complete
from flagbench.cli.options import StoreOption, WideOption
from flagbench.console.output import echo_json_text, print_error
from flagbench.console.stdio import NotPrinted
from flagbench.errors import FlagbenchError
from flagbench.machine.catalog import with_stack
from flagbench.manifests.load import load_catalog
from flagbench.manifests.lookup import catalog_get, resolve_image
from flagbench.options import takes_options, words
from flagbench.price import check_price
from flagbench.runs import preview
from flagbench.runs.keep import open_usable_store, run_and_keep
from flagbench.runs.launchers.describe import describe
from flagbench.runs.launchers.docker_command import DockerOptions
from flagbench.runs.launchers.estimate import estimate
from flagbench.runs.memory import memory_here
from flagbench.runs.request import LocalOptions, RunRequest
from flagbench.runs.series import SeriesOptions, check_series, plan_sides, run_sides
from flagbench.runs.target import ViaOption, targets_of
from flagbench.system.signals import Delaying
from flagbench_core.exit_codes import ExitCode


@takes_options
def command(
    image_name: Annotated[
        str,
        typer.Argument(
            metavar="CASE[:STACK]",
            autocompletion=complete.cases,
            help="For example distilbert:cpu. Without a stack: the one for this machine's device.",
        ),
    ],
    options: LocalOptions,
    container: DockerOptions,
    series: SeriesOptions,
    via: ViaOption = None,
    store: StoreOption = None,
    claim: Annotated[
        str | None,
        typer.Option(autocompletion=complete.claims, help="The claim to show beside it. Default: the nearest."),
    ] = None,
    show_command: Annotated[
        bool, typer.Option("--show-command", help="With docker: print the command that does the same, run nothing.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run and how long it should take; run nothing.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Run the reference preset on a processor without asking.")
    ] = False,
    wide: WideOption = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the record, or the series, instead of a table.")
    ] = False,
) -> None:
    """Run a case, keep its record in the store, and show it beside the published row.

    Ends with the run's own exit code: 0 done, 2 usage, 3 data, 4 a rank failed, 5 out of memory, 6 timeout or hang,
    7 interrupted, 12 a check of its own failed, 13 wrong hardware, 14 measured but not stored, 15 container engine.
    A series ends with the code of its first run that did not end well. Only `verify` exits by its verdict. With
    docker the image must exist: none is built, and only an image in a bucket, named by --image, is pulled.
    """
    check_price()
    catalog = load_catalog()
    image_name = with_stack(image_name, catalog)
    case, stack = resolve_image(image_name, catalog)
    if claim is not None and catalog_get(catalog.claims, claim, kind="claim").case != case.name:
        raise FlagbenchError(
            f"the claim {claim} is not of the case {case.name}",
            remedy=f"name a claim of {case.name}; `flagbench list claims` shows them",
        )
    check_series(series, options)
    records = open_usable_store(store)
    flags = ["--show-command"] if show_command else []
    targets = targets_of(RunRequest(case, stack, options), via, container, series.interleave, catalog, flags)
    first = targets[0]
    if not (dry_run or show_command):
        preview.announce(first)
    if show_command and series.asked:
        raise FlagbenchError(
            "--show-command shows one run, not a series", remedy="leave out --repeat, --interleave and --name"
        )
    described = [describe(target.request, container=target.via == "docker") for target in targets]
    if show_command:
        print(first.launcher.command(first.request))
        return
    memory = memory_here(first.request)
    preview.warn_of_memory(memory)
    lines = [target.launcher.command(target.request) for target in targets]
    if dry_run or preview.asks(first.request, yes=yes):
        expected = estimate(described[0], stack, records, catalog.claims.values())
        if dry_run:
            facts = series.facts if series.asked else None
            preview.show(first, described[0], expected, memory, command=lines[0], series=facts, as_json=as_json)
            return
        preview.confirm(expected)
    if series.asked:
        from flagbench.runs import series_page  # with verify, which a --dry-run does not need

        command_line = ["run", image_name, *options.words(), *words(container), *words(series)]
        digests = [each.digest for each in described]
        sides = plan_sides(series, targets, records, command_line, digests)
        code = run_sides(sides, lambda target: run_and_keep(target, records))
        series_page.show(sides, catalog, claim, store, wide=wide, as_json=as_json)
        raise typer.Exit(code)
    with Delaying() as delaying:
        ended = run_and_keep(targets[0], records)
    interrupted = delaying.signalled is not None or ended.result.signalled
    code = ended.code or int(ExitCode.INTERRUPTED if interrupted else ExitCode.OK)
    if ended.refused or not ended.result.record.strip():
        raise typer.Exit(ended.code)
    try:
        # A record that could not be stored is printed: it cost a run.
        if as_json or not ended.kept:
            echo_json_text(ended.result.record.decode("utf-8", "replace").rstrip("\n"))
        else:
            # With verify, as above.
            from flagbench.records.read import read_record
            from flagbench.records.runs_and_series import Runs
            from flagbench.runs.series_page import verdict_of

            record = read_record(ended.result.record)
            print(verdict_of(Runs([record]), case, catalog, claim, wide=wide), end="")
        sys.stdout.flush()
    except NotPrinted as error:
        if not ended.kept:
            raise
        # It is stored: a failure to show it does not change how the run ended.
        print_error(str(error), "the record is kept; `flagbench results show last`")
    raise typer.Exit(code)
