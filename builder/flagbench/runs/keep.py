"""Runs a target to its end and stores what the run left: its record and its bundles.

A bundle is an archive of one node's raw events. `flagbench run`, `reproduce` and `accept` call `run_and_keep`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from flagbench.console.output import print_error, print_note
from flagbench.errors import FlagbenchError
from flagbench.records.store import Store, open_store
from flagbench.records.waiting import Waiting, adopt_bundles, bundle_folder, set_aside, unsent_folder
from flagbench.runs.launchers import LaunchResult
from flagbench.runs.launchers.launch_time import TimedLaunch, timed_launch, write_launch
from flagbench.runs.request import RunRequest
from flagbench.runs.target import Target
from flagbench.system.files import reason
from flagbench_core.exit_codes import ExitCode


def open_usable_store(url: str | None) -> Store:
    """Open the store and check that it can store a record, so that no run is lost.

    Raises FlagbenchError (usage or network) if it cannot.
    """
    store = open_store(url)
    health = store.health()
    if not health.ok:
        raise FlagbenchError(
            f"the store can keep no record: {health.detail}",
            remedy=health.remedy or "name another store with --store",
            code=health.code,
        )
    return store


@contextmanager
def bundles_of(request: RunRequest) -> Iterator[RunRequest]:
    """The request with a temporary folder for its bundles. If none can be made, warn and run without bundles."""
    with ExitStack() as stack:
        try:
            request = replace(request, bundle=str(stack.enter_context(bundle_folder())))
        except OSError as error:
            print_note(f"warning: the run makes no bundle: {unsent_folder()} cannot be used: {reason(error)}")
        yield request


@dataclass(frozen=True)
class Finished:
    """A run that has ended, and whether its record is stored."""

    result: LaunchResult
    launch: TimedLaunch
    kept: bool
    """Whether the record is in the store."""
    code: int
    """The exit code of the run, or NOT_STORED if the run ended well and something of it could not be stored."""
    refused: bool = False
    """Whether nothing was run: the image refused its arguments, as one of another version may, or found the wrong
    hardware. The record of such a run is not stored."""


def run_and_keep(target: Target, store: Store) -> Finished:
    """Run to the end and store the record and the bundles. Raises FlagbenchError if nothing could be started."""
    store.check_keeps()
    with bundles_of(target.request) as request:
        launch = timed_launch(target.launcher, request, target.via)
        if _is_usage_error(launch.result):
            return Finished(launch.result, launch, kept=False, code=launch.result.exit_code, refused=True)
        result = write_launch(launch, request)
        if result.exit_code == ExitCode.WRONG_HARDWARE:
            return Finished(result, launch, kept=False, code=result.exit_code, refused=True)
        kept = keep(result, request, store)
        return Finished(result, launch, kept.has_record, kept.code)


def _is_usage_error(result: LaunchResult) -> bool:
    """Whether the image refused its arguments: by its exit code, since it may print no record, or by the record."""
    if result.exit_code == ExitCode.USAGE:
        return True
    try:
        return bool(json.loads(result.record)["status"]["phase"] == "usage")
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


class Kept(NamedTuple):
    """The result of storing what a run left."""

    has_record: bool
    """Whether the store has the record."""
    code: int
    """The exit code of the run, or NOT_STORED if the run ended well and something of it could not be stored."""


def keep(result: LaunchResult, request: RunRequest, store: Store) -> Kept:
    """Store the bundles of a run, then its record; if one cannot be stored, print why and go on with the next.

    Storing may take minutes and be interrupted, so everything is first moved to a folder where it waits to be stored.
    """
    try:
        waiting = _set_aside(result, request, store.url)
    except FlagbenchError as error:  # the record is not valid
        print_error(error.message, f"{error.remedy}; the record is on stdout")
        return Kept(has_record=False, code=result.exit_code or int(ExitCode.NOT_STORED))
    has_record = True
    all_stored = True
    for blob in waiting:
        is_record = blob.place is None
        try:
            location = blob.send(store)
        except FlagbenchError as error:
            all_stored = False
            remedy = error.remedy
            if is_record:
                has_record = False
                remedy += "; the record is on stdout"
            if blob.path.exists():
                remedy += "; `flagbench results push` stores it later"
            print_error(error.message, remedy)
            continue
        blob.forget()
        if is_record:
            print_note(f"record {blob.record_id} kept in {location}")
    if all_stored:
        return Kept(has_record, result.exit_code)
    return Kept(has_record, result.exit_code or int(ExitCode.NOT_STORED))


def _set_aside(result: LaunchResult, request: RunRequest, address: str) -> list[Waiting]:
    """Move the bundles and the record of a run to the folder where they wait to be stored, in that order.

    Nodes other than node 0 have bundles and no record. Raises RecordError for a record that is not valid, and then
    moves nothing.
    """
    records = []
    if result.record.strip():
        records.append(set_aside(result.record, address))
    bundles: list[Waiting] = []
    if request.bundle:
        try:
            bundles = adopt_bundles(Path(request.bundle), address)
        except OSError as error:
            print_note(f"warning: the run's bundle is lost: {reason(error)}")
    return [*bundles, *records]
