"""Stores the bundles and the record of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from flagbench.console.output import print_error, print_note
from flagbench.errors import FlagbenchError
from flagbench.records.store import Store, open_store
from flagbench.records.waiting import Waiting, adopt_bundles, bundle_folder, set_aside
from flagbench.runs.launchers import LaunchResult
from flagbench.runs.launchers.launch_time import TimedLaunch, stamped, timed_launch
from flagbench.runs.request import RunRequest
from flagbench.runs.target import Target
from flagbench.system.files import reason
from flagbench_core.exit_codes import ExitCode


def open_usable_store(url: str | None) -> Store:
    """The store. Raises FlagbenchError (usage, network) where it cannot store a record: a run would be lost."""
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
    """The request with a folder of its own for bundles; without one where none can be made, which is reported."""
    with ExitStack() as stack:
        try:
            request = replace(request, bundle=str(stack.enter_context(bundle_folder())))
        except OSError as error:
            print_note(f"warning: the run makes no bundle: {reason(error)}")
        yield request


@dataclass(frozen=True)
class Finished:
    """A run that has ended. Its record, if there is one, is stored unless that failed."""

    result: LaunchResult
    launch: TimedLaunch
    kept: bool
    """Whether the record is in the store."""
    code: int
    """The exit code, storing included."""
    refused: bool = False
    """Whether nothing was run: the image refused its arguments, as another version of it may, or found the wrong
    hardware. Such a record is not stored."""


def run_and_keep(target: Target, store: Store) -> Finished:
    """Run to the end and store what the run left. Raises FlagbenchError if nothing could be started."""
    store.check_keeps()
    with bundles_of(target.request) as request:
        launch = timed_launch(target.launcher, request, target.via)
        if _refused(launch.result):
            return Finished(launch.result, launch, kept=False, code=launch.result.exit_code, refused=True)
        result = stamped(launch, request)
        if result.exit_code == ExitCode.WRONG_HARDWARE:
            return Finished(result, launch, kept=False, code=result.exit_code, refused=True)
        kept, code = keep(result, request, store)
        return Finished(result, launch, kept, code)


def _refused(result: LaunchResult) -> bool:
    try:
        return bool(json.loads(result.record)["status"]["phase"] == "usage")
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def keep(result: LaunchResult, request: RunRequest, store: Store) -> tuple[bool, int]:
    """Store the bundles of a run, then its record; a failure does not keep the others from being stored.

    Whether the record is in the store, and the exit code; failures are reported. Meanwhile all of it waits: that may
    take minutes, and may be interrupted.
    """
    try:
        waiting = _set_aside(result, request, store.url)
    except FlagbenchError as error:  # what it left is no record
        print_error(error.message, f"{error.remedy}; the record is on stdout")
        return False, result.exit_code or int(ExitCode.NOT_STORED)
    kept = complete = True
    for blob in waiting:
        is_record = blob.place is None
        try:
            location = blob.send(store)
        except FlagbenchError as error:
            complete = False
            remedy = error.remedy
            if is_record:
                kept = False
                remedy += "; the record is on stdout"
            if blob.path.exists():
                remedy += "; `flagbench results push` stores it later"
            print_error(error.message, remedy)
            continue
        blob.forget()
        if is_record:
            print_note(f"record {blob.record_id} kept in {location}")
    if complete:
        return kept, result.exit_code
    return kept, result.exit_code or int(ExitCode.NOT_STORED)


def _set_aside(result: LaunchResult, request: RunRequest, address: str) -> list[Waiting]:
    """Move the bundles and the record of a run to where they wait to be stored. Raises RecordError, moving nothing.

    A node that is not the first has bundles alone.
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
