"""Keeps what a run left: its bundles and its record in the store, and with a ticket where that leads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
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
from flagbench.stores import Store, StoredRecord, set_aside
from flagbench.stores.bucket import BucketBlobs
from flagbench.stores.layout import BundlePlace
from flagbench.stores.ticket import check_ticket, read_ticket, upload_bundle, upload_record
from flagbench.stores.waiting import adopt_bundles, bundle_folder, unsent
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
    check_ticket(ticket, run_id=options.run_id, nodes=options.nodes, minutes=options.max_minutes)
    return ticket


@contextmanager
def bundles_of(request: RunRequest, store: Store, ticket: Ticket | None) -> Iterator[RunRequest]:
    """The request with a folder of its own for bundles; without one where none can be made, which is reported."""
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(bundle_folder(_address(store, ticket)))
            request = replace(request, bundle=str(folder))
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
    with bundles_of(target.request, store, ticket) as request:
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
    address = _address(store, ticket)
    bundles = _adopt(request.bundle, address)
    record = result.record if result.record.strip() else None
    early = record is not None and (isinstance(store.blobs, BucketBlobs) or ticket is not None)
    aside = _set_aside(record, address) if record is not None and early else None
    failures = _store(record, bundles, store)
    kept = not any(of_record for of_record, _ in failures)
    # What the ticket leads to takes them too, so nothing has to wait for a folder that is full.
    missing = failures if ticket is None else _upload(record, bundles, ticket)
    if missing and record is not None:
        aside = aside or _set_aside(record, address)
    again = f"flagbench results push{' --ticket FILE' * (ticket is not None)}"
    later = f"; `{again}` stores it later" if missing and (aside or bundles) else ""
    for of_record, error in failures:
        print_error(
            error.message, f"{error.remedy}{'; the record is on stdout' * of_record}{later * (ticket is None)}"
        )
    for _, error in missing if ticket is not None else ():
        print_error(error.message, f"{error.remedy}{later}")
    if not missing:
        _forget(aside, bundles, address)
    if failures or missing:
        return kept, result.exit_code or int(ExitCode.NOT_STORED)
    return kept, result.exit_code


def _store(
    record: bytes | None, bundles: list[tuple[BundlePlace, Path]], store: Store
) -> list[tuple[bool, FlagbenchError]]:
    """Put bundles, then the record: it is small, and is tried in any case.

    What failed: whether it was the record, and why.
    """
    failures: list[tuple[bool, FlagbenchError]] = []
    for place, path in bundles:
        try:
            store.bundles.put(place, path)
        except FlagbenchError as error:
            failures.append((False, error))
    if record is not None:
        try:
            stored = store.put(record)
            typer.echo(f"record {stored.record_id} kept in {stored.location}", err=True)
        except FlagbenchError as error:
            failures.append((True, error))
    return failures


def _upload(
    record: bytes | None, bundles: list[tuple[BundlePlace, Path]], ticket: Ticket
) -> list[tuple[bool, FlagbenchError]]:
    """Upload with the ticket. What failed, as `_store` has it."""
    try:
        for place, path in bundles:
            upload_bundle(ticket, place.node, path)
        if record is not None:
            upload_record(ticket, record)
    except FlagbenchError as error:
        return [(False, error)]
    typer.echo(visible(f"run {ticket.run_id} uploaded to {ticket.store}"), err=True)
    return []


def _forget(aside: StoredRecord | None, bundles: list[tuple[BundlePlace, Path]], address: str) -> None:
    """What is stored waits no more."""
    for _, path in bundles:
        with suppress(OSError):
            path.unlink()
            path.parent.rmdir()
    if aside is not None:
        with suppress(FlagbenchError):
            unsent(address).remove(aside)


def _address(store: Store, ticket: Ticket | None) -> str:
    return store.url if ticket is None else ticket.meant_for


def _set_aside(record: bytes, address: str) -> StoredRecord | None:
    """Keep a record until it is stored; None where that is not possible either."""
    try:
        return set_aside(record, address)
    except FlagbenchError:
        return None


def _adopt(folder: str | None, address: str) -> list[tuple[BundlePlace, Path]]:
    if folder is None:
        return []
    try:
        return adopt_bundles(Path(folder), address)
    except OSError as error:
        typer.echo(f"warning: the run's bundle is lost: {reason(error)}", err=True)
        return []
