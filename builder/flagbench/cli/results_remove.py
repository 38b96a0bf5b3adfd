"""`flagbench results rm`: removes records that are named, or selected by age, case and state."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from flagbench import complete
from flagbench.cli.options import JsonOption, StoreOption, WideOption, YesOption
from flagbench.console.output import echo_json, print_error, print_page, size_text
from flagbench.console.page import Table
from flagbench.errors import FlagbenchError
from flagbench.history.selection import State, select, state_of
from flagbench.records.named import listed_records
from flagbench.records.removal import RemovableRecord, may_be_removed, remove, with_bundles
from flagbench.records.store import Store, open_store


def command(
    records: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECORD",
            autocompletion=complete.records,
            help="Ids, their beginnings or last 8 digits, last or last~1.",
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="AGE|DATE", help="Select records older than an age (12h, 30d, 2w) or a date."),
    ] = None,
    case: Annotated[str | None, typer.Option(help="Select records of this case.")] = None,
    state: Annotated[State | None, typer.Option(help="Select records of runs that ended in this state.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    yes: YesOption = False,
    store: StoreOption = None,
    wide: WideOption = False,
    json: JsonOption = False,
) -> None:
    """Remove records and their bundles from the store. Asks first; without a terminal --yes is needed.

    Name the records, damaged ones too, or select those that match all of --older-than, --case and --state. If one of
    the names is wrong, nothing is removed. Files that flagbench did not write are never selected.

    --json prints {"removed": [...]}, each with name, detail and size (bytes, with bundles), and needs --yes; with
    --dry-run it prints {"removable": [...]}.
    """
    is_selected = older_than is not None or case is not None or state is not None
    _check_selection(is_named=bool(records), is_selected=is_selected)
    place = open_store(store)
    if records:
        stored_records = listed_records(records, place)
    else:
        matching = select(place, case=case, state=state, older_than=older_than)
        stored_records = [record for record in matching if may_be_removed(record)]
    if not dry_run and not yes and (json or not _can_ask()):
        raise FlagbenchError(
            "nothing was removed: results rm needs a terminal to ask for confirmation",
            remedy="add --yes to remove without asking, or --dry-run to see what would be removed",
        )
    removable = with_bundles(place, stored_records)
    if dry_run and json:
        echo_json({"removable": [_as_json(record) for record in removable]})
        return
    if not json:
        _print_records(removable, wide=wide)
    if dry_run:
        return
    if not removable and not json:  # with --json, an empty list is printed
        return
    if yes or typer.confirm(f"Remove {_total_text(removable)}?", err=True):
        _remove(place, removable, json=json)


def _check_selection(*, is_named: bool, is_selected: bool) -> None:
    """Raise FlagbenchError (USAGE) unless records are either named or selected by options."""
    if is_named and is_selected:
        raise FlagbenchError(
            "results rm: records are named and selected at once",
            remedy="name records, or select them with --older-than, --case and --state",
        )
    if not is_named and not is_selected:
        raise FlagbenchError(
            "results rm: no record is selected",
            remedy="name records, or select them with --older-than, --case or --state",
        )


def _print_records(records: Sequence[RemovableRecord], *, wide: bool) -> None:
    """Print the table of the records that would be removed."""
    if not records:
        typer.echo("nothing to remove")
        return
    rows = [(record.record_id, _detail_text(record), size_text(record.size)) for record in records]
    print_page(Table(("RECORD", "DETAIL", "SIZE"), rows, drop=("DETAIL",)), wide=wide)


def _remove(store: Store, records: Sequence[RemovableRecord], *, json: bool) -> None:
    """Remove every record that can be removed. Each failure is reported; the first one decides the exit code."""
    removed: list[RemovableRecord] = []
    failures: list[FlagbenchError] = []
    for record in records:
        try:
            remove(store, record)
        except FlagbenchError as error:
            print_error(error.message, error.remedy)
            failures.append(error)
        else:
            removed.append(record)
    if json:
        echo_json({"removed": [_as_json(record) for record in removed]})
    else:
        typer.echo(f"removed {_total_text(removed)}", err=True)
    if failures:
        raise typer.Exit(int(failures[0].code))


def _as_json(record: RemovableRecord) -> dict[str, str | int]:
    return {"name": record.record_id, "detail": _detail_text(record), "size": record.size}


def _detail_text(record: RemovableRecord) -> str:
    """`glm:a100, ok, 2026-11-28T10:00:00Z, 1 bundle(s)`."""
    entry = record.stored
    detail = f"{entry.case}:{entry.stack}, {state_of(entry).value}, {entry.created_at}"
    if record.bundles:
        detail += f", {len(record.bundles)} bundle(s)"
    return detail


def _total_text(records: Sequence[RemovableRecord]) -> str:
    """`2 records (17.3 KiB)`."""
    size = size_text(sum(record.size for record in records))
    if len(records) == 1:
        return f"1 record ({size})"
    return f"{len(records)} records ({size})"


def _can_ask() -> bool:
    """Whether a person can read the question and answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty()
