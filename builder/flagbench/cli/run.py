"""`flagbench run`: run a case, keep its record, and show it beside the published row."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal

import typer

from flagbench.catalog.load import load_catalog
from flagbench.catalog.lookup import catalog_get, resolve_image
from flagbench.catalog.model import Case, Catalog, Stack
from flagbench.cli import complete, preview, run_keep
from flagbench.cli.options import StoreOption, WideOption
from flagbench.cli.output import print_error
from flagbench.errors import FlagbenchError
from flagbench.launchers import Launcher, LaunchResult
from flagbench.launchers.container import DockerOptions
from flagbench.launchers.describe import check_folders, describe
from flagbench.launchers.docker import DockerLauncher
from flagbench.launchers.estimate import estimate
from flagbench.launchers.fetch import fetch
from flagbench.launchers.native import NativeLauncher
from flagbench.oci.progress import TransferProgress
from flagbench.options import takes_options, words
from flagbench.record.read import read_record
from flagbench.report import verdict_table
from flagbench.request import LocalOptions, RunRequest
from flagbench.stdio import NotPrinted
from flagbench.stores import Store, open_store
from flagbench.verify import choose_claim, verify_claim

Via = Literal["docker", "native"]


@takes_options
def command(
    image_name: Annotated[
        str, typer.Argument(metavar="CASE:STACK", autocompletion=complete.images, help="For example distilbert:cpu.")
    ],
    options: LocalOptions,
    container: DockerOptions,
    via: Annotated[
        Via | None,
        typer.Option(help="In a container, or in this Python. Default: native for the stack cpu, else docker."),
    ] = None,
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
    as_json: Annotated[bool, typer.Option("--json", help="Print the record instead of a table.")] = False,
) -> None:
    """Run a case, keep its record in the store, and show it beside the published row.

    Ends with the run's own exit code: 0 done, 2 usage, 3 data, 4 a rank failed, 5 out of memory, 6 timeout or hang,
    7 interrupted, 12 a check of its own failed, 13 wrong hardware, 14 measured but not stored, 15 container engine.
    Only `verify` exits by its verdict. With docker the image must exist; none is built, and none pulled but one that
    --image names in a bucket.
    """
    catalog = load_catalog()
    case, stack = resolve_image(image_name, catalog)
    if claim is not None and catalog_get(catalog.claims, claim, kind="claim").case != case.name:
        raise FlagbenchError(
            f"the claim {claim} is not of the case {case.name}",
            remedy=f"name a claim of {case.name}; `flagbench list claims` shows them",
        )
    granted = run_keep.read_granted(options, store)
    if granted is not None:
        options = replace(options, run_id=granted.run_id)
    records = _usable(open_store(store))
    request = RunRequest(case, stack, options)
    only_docker = [word.partition("=")[0] for word in words(container)] + ["--show-command"] * show_command
    how = _how(via, stack, only_docker)
    if not (dry_run or show_command):
        preview.announce(request, how)
    launcher = _launcher(how, container, {})
    if show_command:
        check_folders(options)
        request, launcher = _with_data(request, how, container)
        print(launcher.command(request))
        return
    described = describe(request, container=how == "docker")
    line = launcher.command(request)
    if dry_run or preview.asks(request, yes=yes):
        expected = estimate(described, stack, records, catalog.claims.values())
        if dry_run:
            used = None if how == "native" else container.image or request.image
            preview.show(request, described, expected, image=used, command=line, as_json=as_json)
            return
        preview.confirm(expected)
    request, launcher = _with_data(request, how, container)
    with run_keep.bundles_of(request, records, granted) as asked:
        result = launcher.launch(asked)
        if _refused(result):
            raise typer.Exit(result.exit_code)
        kept, code = run_keep.keep(result, asked, records, granted)
    if not result.record.strip():
        raise typer.Exit(code)
    try:
        # A record that could not be stored is printed: it cost a run.
        if as_json or not kept:
            print(result.record.decode("utf-8", "replace").rstrip("\n"))
        else:
            _show(result, catalog, case, claim, wide=wide)
        sys.stdout.flush()
    except NotPrinted as error:
        if not kept:
            raise
        # It is stored: a failure to show it does not change how the run ended.
        print_error(str(error), "the record is kept; `flagbench results show last`")
    raise typer.Exit(code)


def _how(via: Via | None, stack: Stack, only_docker: list[str]) -> Via:
    """How to run, from what was asked and what the stack is. Raises FlagbenchError (usage) for a contradiction."""
    if via == "native" and only_docker:
        raise FlagbenchError(
            f"{only_docker[0]} needs a container, which --via native does not use", remedy="use --via docker"
        )
    if via is not None:
        return via
    return "native" if stack.device_kind == "cpu" and not only_docker else "docker"


def _launcher(how: Via, container: DockerOptions, sources: Mapping[str, str]) -> Launcher:
    """The launcher. `sources`: variables that say where mounted folders are from."""
    if how == "native":
        return NativeLauncher()
    return DockerLauncher(
        container,
        environment={**os.environ, **sources},
        shows=preview.progress_environment(),
        progress=TransferProgress(),
    )


def _with_data(request: RunRequest, how: Via, container: DockerOptions) -> tuple[RunRequest, Launcher]:
    """The request and its launcher, once what a container is to read from a bucket has been fetched.

    A native run fetches by itself. Raises typer.Exit where fetching failed, which has been told.
    """
    if how == "native":
        return request, _launcher(how, container, {})
    fetched = fetch(request)
    if isinstance(fetched, int):
        raise typer.Exit(fetched)
    return fetched.request, _launcher(how, container, fetched.environment)


def _refused(result: LaunchResult) -> bool:
    """Whether the image refused its arguments, as another version of it may. Such a record is not stored."""
    try:
        return bool(json.loads(result.record)["status"]["phase"] == "usage")
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _usable(store: Store) -> Store:
    """The store itself. Raises FlagbenchError (usage) where it takes no record now: that should not cost a run."""
    health = store.health()
    if not health.writable:
        raise FlagbenchError(
            f"the store can keep no record: {health.detail}",
            remedy=health.remedy or "name another store with --store",
        )
    return store


def _show(result: LaunchResult, catalog: Catalog, case: Case, claim: str | None, *, wide: bool) -> None:
    """The same table as `verify` shows; the verdict does not decide the exit code."""
    record, verdict = read_record(result.record), None
    if claims := [entry for entry in catalog.claims.values() if entry.case == case.name]:
        against = choose_claim(record, case, claims) if claim is None else catalog.claims[claim]
        verdict = verify_claim([record], against, case, chosen=claim is None)
    print(verdict_table([record], verdict, wide=wide), end="")
