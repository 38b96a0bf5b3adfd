"""`flagbench results rm` and `prune`: free the space of records, images and the cache."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Annotated

import typer

from flagbench import complete
from flagbench import prune as pruning
from flagbench.cli.options import JsonOption, StoreOption, WideOption, YesOption
from flagbench.errors import FlagbenchError
from flagbench.manifests.load import load_catalog
from flagbench.output import echo_json, print_error, print_page, size_text
from flagbench.page import Lines, Table
from flagbench.prune import Removable
from flagbench.records.named import stored_entries
from flagbench.records.store import open_store
from flagbench.report.results import State, select


def remove(
    records: Annotated[
        list[str],
        typer.Argument(
            metavar="RECORD...", autocompletion=complete.records, help="Ids or beginnings of ids, last or last~1."
        ),
    ],
    yes: YesOption = False,
    store: StoreOption = None,
    wide: WideOption = False,
    json: JsonOption = False,
) -> None:
    """Remove records from the store, damaged ones too. Asks first; without a terminal --yes is needed.

    If one of the names is wrong, nothing is removed. --json prints {"removed": [...]}, each with kind, name, detail
    and size (bytes), and needs --yes.
    """
    place = open_store(store)
    found = [pruning.stored_record(place, entry) for entry in stored_entries(records, place)]
    if not yes and (json or not _can_ask()):
        raise _unasked("rm")
    _confirm_and_remove(found, dry_run=False, yes=yes, wide=wide, json=json)


def prune(
    older_than: Annotated[
        str | None,
        typer.Option(metavar="AGE|DATE", help="Select records older than an age (12h, 30d, 2w) or a date."),
    ] = None,
    keep: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Keep the newest N of the selected records.")
    ] = None,
    state: Annotated[State | None, typer.Option(help="Select records of runs that ended in this state.")] = None,
    case: Annotated[str | None, typer.Option(help="Select records of this case.")] = None,
    stack: Annotated[str | None, typer.Option(help="Select records of this stack, by name or alias.")] = None,
    images: Annotated[
        bool,
        typer.Option("--images", help="Select images built by flagbench that no current name or alias refers to."),
    ] = False,
    cache: Annotated[
        bool, typer.Option("--cache", help="Select what the cache keeps of buckets: data, weights.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    yes: YesOption = False,
    store: StoreOption = None,
    wide: WideOption = False,
    json: JsonOption = False,
) -> None:
    """Show what is selected with its size and remove it: after a question on a terminal, otherwise only with --yes.

    A record is selected if all of --older-than, --state, --case and --stack that are given apply to it; without any
    of these or --keep, no record is. Only what flagbench made is ever removed.

    --json prints {"removable": [...], "bytes": N}, each with kind, name, detail and size (bytes); with --yes,
    {"removed": [...]} instead.
    """
    found: list[Removable] = []
    if any(option is not None for option in (older_than, keep, state, case, stack)):
        place = open_store(store)
        selected = select(place, case=case, stack=stack, state=state, older_than=older_than)
        found += pruning.records(place, selected, keep or 0)
    elif not (images or cache):
        raise FlagbenchError(
            "results prune: nothing is selected",
            remedy="give --older-than, --keep, --state, --case, --stack, --images or --cache",
        )
    if cache:
        found += pruning.cached()
    with ExitStack() as resources:
        if images:
            from flagbench.images.docker_api import open_client  # no other option needs docker-py

            client = resources.enter_context(closing(open_client()))
            found += pruning.images(client, load_catalog(claims=False))
        _confirm_and_remove(found, dry_run=dry_run, yes=yes, wide=wide, json=json)


def _confirm_and_remove(found: Sequence[Removable], *, dry_run: bool, yes: bool, wide: bool, json: bool) -> None:
    if json and (dry_run or not yes):
        echo_json({"removable": _as_json(found), "bytes": sum(one.size for one in found)})
        return
    if not json:
        rows = [[one.kind, one.name, one.detail, size_text(one.size)] for one in found]
        table = Table(("KIND", "NAME", "DETAIL", "SIZE"), rows, drop=("DETAIL", "KIND"))
        print_page(table if rows else Lines(("nothing to remove",)), wide=wide)
    if dry_run or (not found and not json):
        return
    if not yes and not _can_ask():
        sys.stdout.flush()
        raise _unasked("prune")
    if yes or typer.confirm(f"Remove {_total(found)}?", err=True):
        _remove(found, json=json)


def _remove(found: Sequence[Removable], *, json: bool) -> None:
    """Remove everything that can be removed. Every failure is reported; the first one decides the exit code."""
    removed, failures = [], []
    for one in found:
        try:
            one.remove()
            removed.append(one)
        except FlagbenchError as error:
            print_error(error.message, error.remedy)
            failures.append(error)
    if json:
        echo_json({"removed": _as_json(removed)})
    else:
        typer.echo(f"removed {_total(removed)}", err=True)
    if failures:
        raise typer.Exit(int(failures[0].code))


def _as_json(found: Sequence[Removable]) -> list[dict[str, str | int]]:
    return [{"kind": one.kind, "name": one.name, "detail": one.detail, "size": one.size} for one in found]


def _total(found: Sequence[Removable]) -> str:
    return f"{len(found)} ({size_text(sum(one.size for one in found))})"


def _unasked(command: str) -> FlagbenchError:
    return FlagbenchError(
        f"nothing was removed: results {command} needs a terminal to ask for confirmation",
        remedy="give --yes to remove without asking, or --dry-run to look" if command == "prune" else "give --yes",
    )


def _can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()
