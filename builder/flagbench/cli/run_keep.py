"""Keeps what a run left: its bundles and its record in the store, and with a ticket where that leads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from flagbench.cli.output import print_error
from flagbench.cli.run_target import Target
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.files import reason
from flagbench.launchers import LaunchResult
from flagbench.launchers.clock import TimedLaunch, stamped, timed_launch
from flagbench.request import LocalOptions, RunRequest
from flagbench.s3.ticket import Ticket
from flagbench.stores import Store
from flagbench.stores.bucket import BucketBlobs
from flagbench.stores.ticket import read_ticket, upload_bundle, upload_record
from flagbench.stores.waiting import Waiting, adopt_bundles, bundle_folder, set_aside
from flagbench.terminal import visible


def read_granted(file: Path | None, options: LocalOptions, store: str | None) -> Ticket | None:
    """The ticket of a run; None without one. Raises FlagbenchError (usage) where it cannot be used for the run."""
    if file is None:
        return None
    if store is not None:
        raise FlagbenchError(
            "--ticket and --store contradict each other",
            remedy="leave out --store: the record is also kept in your own store",
        )
    ticket = read_ticket(file)
    if fault := ticket.fault(options.run_id, options.nodes, options.max_minutes):
        raise FlagbenchError(fault[0], remedy=fault[1])
    return ticket


@contextmanager
def bundles_of(request: RunRequest) -> Iterator[RunRequest]:
    """The request with a folder of its own for bundles; without one where none can be made, which is reported."""
    with ExitStack() as stack:
        try:
            request = replace(request, bundle=str(stack.enter_context(bundle_folder())))
        except OSError as error:
            typer.echo(f"warning: the run makes no bundle: {reason(error)}", err=True)
        yield request


@dataclass(frozen=True)
class Finished:
    """A run that has ended and whose record, if it left one, was stored where that was possible."""

    result: LaunchResult
    launch: TimedLaunch
    kept: bool
    """Whether the record is in the store."""
    code: int
    """The exit code, storing included."""
    refused: bool = False
    """Whether the image refused its arguments, as another version of it may. Such a record is not stored."""


def run_and_keep(target: Target, store: Store, ticket: Ticket | None) -> Finished:
    """Run to the end and store what the run left. Raises FlagbenchError if nothing could be started."""
    with bundles_of(target.request) as request:
        launch = timed_launch(target.launcher, request, target.via)
        if _refused(launch.result):
            return Finished(launch.result, launch, kept=False, code=launch.result.exit_code, refused=True)
        result = stamped(launch, request)
        kept, code = keep(result, request, store, ticket)
        return Finished(result, launch, kept, code)


def _refused(result: LaunchResult) -> bool:
    try:
        return bool(json.loads(result.record)["status"]["phase"] == "usage")
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def keep(result: LaunchResult, request: RunRequest, store: Store, ticket: Ticket | None) -> tuple[bool, int]:
    """Store what a run left. Whether its record is in the store, and the exit code; failures are reported.

    Meanwhile it waits in a folder: storing in a bucket may take minutes, and may be interrupted.
    """
    address = store.url if ticket is None else ticket.meant_for
    bundles = _adopt(request.bundle, address)
    record = result.record if result.record.strip() else None
    early = record is not None and (isinstance(store.blobs, BucketBlobs) or ticket is not None)
    aside = _set_aside(record, address) if record is not None and early else None
    failures = _store(record, bundles, store)
    if failures and record is not None and ticket is None:
        aside = aside or _set_aside(record, address)
    later = "; `flagbench results push` stores it later" if ticket is None and (aside or bundles) else ""
    for of_record, error in failures:
        print_error(error.message, f"{error.remedy}{'; the record is on stdout' * of_record}{later}")
    failed = bool(failures)
    if ticket is not None:
        failed = not _upload(record, bundles, aside, ticket) or failed
    elif not failed:
        for each in (*bundles, *([aside] if aside else ())):
            each.forget()
    kept = not any(of_record for of_record, _ in failures)
    return kept, result.exit_code or int(ExitCode.NOT_STORED if failed else ExitCode.OK)


def _store(record: bytes | None, bundles: list[Waiting], store: Store) -> list[tuple[bool, FlagbenchError]]:
    """Put bundles, then the record: it is small, and is tried in any case.

    What failed: whether it was the record, and why.
    """
    failures: list[tuple[bool, FlagbenchError]] = []
    for each in bundles:
        try:
            if each.place is not None:
                store.bundles.put(each.place, each.path)
        except FlagbenchError as error:
            failures.append((False, error))
    if record is not None:
        try:
            stored = store.put(record)
            typer.echo(f"record {stored.record_id} kept in {stored.location}", err=True)
        except FlagbenchError as error:
            failures.append((True, error))
    return failures


def _upload(record: bytes | None, bundles: list[Waiting], aside: Waiting | None, ticket: Ticket) -> bool:
    """Upload with the ticket. Whether all of it succeeded; a failure is reported, and what it leaves waits."""
    try:
        for each in bundles:
            if each.place is not None:
                upload_bundle(ticket, each.place.node, each.path)
                each.forget()  # each for itself: a ticket takes nothing twice
        if record is not None:
            upload_record(ticket, record)
            if aside is not None:
                aside.forget()
    except FlagbenchError as error:
        later = "; `flagbench results push --ticket FILE` uploads it later" * bool(aside or bundles)
        print_error(error.message, f"{error.remedy}{later}")
        return False
    typer.echo(visible(f"run {ticket.run_id} uploaded to {ticket.store}"), err=True)
    return True


def _set_aside(record: bytes, address: str) -> Waiting | None:
    """Keep a record until it is stored; None where that is not possible either."""
    try:
        return set_aside(record, address)
    except FlagbenchError:
        return None


def _adopt(folder: str | None, address: str) -> list[Waiting]:
    if folder is None:
        return []
    try:
        return adopt_bundles(Path(folder), address)
    except OSError as error:
        typer.echo(f"warning: the run's bundle is lost: {reason(error)}", err=True)
        return []
