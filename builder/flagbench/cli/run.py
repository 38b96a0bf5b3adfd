"""`flagbench run`: runs a case, stores its record, and compares it with the published row.

A case is a workload, a stack the software for a family of devices. The run itself is made by flagbench/runs.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from flagbench import complete
from flagbench.cli.options import StoreOption, WideOption
from flagbench.console.output import echo_json_text, print_error
from flagbench.console.stdio import NotPrinted
from flagbench.errors import FlagbenchError
from flagbench.machine.catalog import choose_stack
from flagbench.manifests.load import load_catalog
from flagbench.manifests.lookup import catalog_get, resolve_image
from flagbench.manifests.model import Case, Catalog
from flagbench.options import takes_options, words
from flagbench.price import check_price
from flagbench.runs import preview
from flagbench.runs.keep import Finished, open_usable_store, run_and_keep
from flagbench.runs.launchers.describe import describe
from flagbench.runs.launchers.docker_command import DockerOptions
from flagbench.runs.launchers.estimate import estimate
from flagbench.runs.memory import compare_memory
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
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show what would run, how, and how long it should take; run nothing."),
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
    image_name = choose_stack(image_name, catalog)
    case, stack = resolve_image(image_name, catalog)
    _check_claim(claim, case, catalog)
    check_series(series, options)
    records = open_usable_store(store)
    request = RunRequest(case, stack, options)
    targets = targets_of(request, via, container, series.interleave, catalog)
    first = targets[0]
    if not dry_run:
        preview.announce(first)
    described = [describe(target.request, container=target.via == "docker") for target in targets]
    memory = compare_memory(first.request)
    preview.warn_of_memory(memory)
    # Made for every target, since it raises an error if something that a launcher needs is not installed.
    commands = [target.launcher.command(target.request) for target in targets]
    if dry_run:
        expected = estimate(described[0], stack, records, catalog.claims.values())
        facts = None
        if series.requested:
            facts = series.facts
        preview.show(first, described[0], expected, memory, command=commands[0], series=facts, as_json=as_json)
        return
    if preview.needs_confirmation(first.request, yes=yes):
        preview.confirm(estimate(described[0], stack, records, catalog.claims.values()))
    if series.requested:
        command_line = ["run", image_name, *options.command_line(), *words(container), *words(series)]
        digests = [description.digest for description in described]
        sides = plan_sides(series, targets, records, command_line, digests)
        code = run_sides(sides, lambda target: run_and_keep(target, records))
        from flagbench.runs import series_page  # imports verify, which a --dry-run does not need

        series_page.show(sides, catalog, claim, store, wide=wide, as_json=as_json)
        raise typer.Exit(code)
    with Delaying() as delaying:
        finished = run_and_keep(first, records)
    if finished.refused or not finished.result.record.strip():
        raise typer.Exit(finished.code)
    if as_json or not finished.kept:
        _print_record(finished)
    else:
        _print_verdict(finished, case, catalog, claim, wide=wide)
    code = finished.code
    is_interrupted = delaying.signalled is not None or finished.result.signalled
    if code == ExitCode.OK and is_interrupted:
        code = int(ExitCode.INTERRUPTED)
    raise typer.Exit(code)


def _check_claim(name: str | None, case: Case, catalog: Catalog) -> None:
    """Raise FlagbenchError (USAGE) for a claim that does not exist or belongs to another case."""
    if name is None:
        return
    if catalog_get(catalog.claims, name, kind="claim").case != case.name:
        raise FlagbenchError(
            f"the claim {name} is not of the case {case.name}",
            remedy=f"name a claim of {case.name}; `flagbench list claims` shows them",
        )


def _print_record(finished: Finished) -> None:
    """Print the record as JSON. Raises NotPrinted if it is neither printed nor stored, as the run is then lost."""
    try:
        echo_json_text(finished.result.record.decode("utf-8", "replace").rstrip("\n"))
        sys.stdout.flush()
    except NotPrinted as error:
        if not finished.kept:
            raise
        _report_not_printed(error)


def _print_verdict(finished: Finished, case: Case, catalog: Catalog, claim: str | None, *, wide: bool) -> None:
    """Print the verdict on a record that is stored."""
    # These import verify, which a --dry-run does not need.
    from flagbench.records.read import read_record
    from flagbench.records.runs_and_series import Runs
    from flagbench.runs.series_page import verdict_of

    try:
        record = read_record(finished.result.record)
        print(verdict_of(Runs([record]), case, catalog, claim, wide=wide), end="")
        sys.stdout.flush()
    except NotPrinted as error:
        _report_not_printed(error)


def _report_not_printed(error: NotPrinted) -> None:
    """Report that a stored record could not be printed, which does not change how the run ended."""
    print_error(str(error), "the record is kept; `flagbench results show last`")
