"""Runs an image several times as a series, or two images in turn as two series.

`plan_sides` plans the runs and `run_sides` makes them; `flagbench run --repeat` and `flagbench reproduce` use both. A
series is stored as a document (records/series_document.py) next to the records of its runs.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, NamedTuple

import typer
from msgspec.structs import replace

from flagbench import complete
from flagbench.console.output import print_error, print_note
from flagbench.console.terminal import visible
from flagbench.errors import FlagbenchError
from flagbench.options import Text
from flagbench.records.blobs import StoreError
from flagbench.records.model import Builder, Record
from flagbench.records.read import RecordError, read_record
from flagbench.records.series import Series, SeriesWriter, with_records
from flagbench.records.series_document import (
    MAX_RUNS,
    SIDES,
    SeriesDocument,
    SeriesRequest,
    SeriesRun,
    check_series_name,
    planned_runs,
    series_id_of,
)
from flagbench.records.store import Store
from flagbench.runs.keep import Finished
from flagbench.runs.launchers.container_environment import is_another_node
from flagbench.runs.request import LocalOptions
from flagbench.runs.target import Target
from flagbench.system.checkout import commit
from flagbench.system.clock import elapsed, utc_now
from flagbench.system.signals import Delaying
from flagbench_core import __version__
from flagbench_core.exit_codes import ExitCode
from flagbench_core.redaction import redact

_NAME_BYTES = 8
"""Random bytes in a generated name: enough that two series never get the same one."""
_TOKEN_BYTES = 16
"""Random bytes by which the writer of a series is distinguished from others with the same name."""


@dataclass(frozen=True)
class SeriesOptions:
    """Options of a series of runs."""

    GROUP: ClassVar[str] = "Series"

    repeat: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_RUNS, metavar="N", help="Run it N times, one after another, and store the series."
        ),
    ] = None
    interleave: Annotated[
        Text,
        typer.Option(
            metavar="CASE:STACK|IMAGE",
            autocompletion=complete.images,
            help="Alternate with another image, N times each: A B B A; two series.",
        ),
    ] = None
    name: Annotated[
        Text,
        typer.Option(
            metavar="NAME",
            help="Name of the series: the ids and seeds of its runs follow from it. Default: random.",
        ),
    ] = None

    @property
    def requested(self) -> bool:
        """Whether the run is to be a series; a name alone makes one of a single run."""
        return self.repeat is not None or self.interleave is not None or self.name is not None

    @property
    def count(self) -> int:
        """The number of runs of each image."""
        return self.repeat or 1

    @property
    def facts(self) -> dict[str, str | int | None]:
        """The series as `--dry-run` prints it: its options by name."""
        return {"repeat": self.count, "interleave": self.interleave, "name": self.name or "random"}


@dataclass
class Side:
    """One of the images that are compared, with the series of its runs; without --interleave there is one side."""

    target: Target
    runs: tuple[SeriesRun, ...]
    """The planned runs, in order."""
    writer: SeriesWriter | None
    """Writes the series to the store; None on nodes other than node 0, which alone writes it."""
    contents: dict[int, bytes] = field(default_factory=dict)
    """The JSON of each run's record by the run's number, also if it could not be stored."""
    unstored: list[bytes] = field(default_factory=list)
    """The JSON of the records that could not be stored."""
    stored: bool = True
    """Whether the series itself is stored, once it has ended."""

    def read(self, run: int) -> Record | None:
        """The record of the run with that number; None if it left no valid one."""
        if run not in self.contents:
            return None
        try:
            return read_record(self.contents[run])
        except RecordError:
            return None

    @property
    def series(self) -> Series | None:
        """The series with the records of its runs; None on nodes other than node 0."""
        if self.writer is None:
            return None
        return with_records(self.writer.series, lambda run: self.contents.get(run.run))


def check_series(series: SeriesOptions, options: LocalOptions) -> None:
    """Raise FlagbenchError (USAGE) for a name that is not valid, and for options that do not fit a series."""
    if series.name is not None:
        check_series_name(series.name)
    if not series.requested:
        return
    if options.run_id is not None:
        raise FlagbenchError(
            "--run-id and a series contradict each other",
            remedy="leave it out: the ids of the runs follow from --name",
        )
    if options.nodes > 1 and series.name is None:
        raise FlagbenchError(
            "a series on several nodes needs --name",
            remedy="give the same --name on all nodes: the ids of the runs follow from it",
        )


def plan_sides(
    series: SeriesOptions,
    targets: Sequence[Target],
    store: Store,
    command: Sequence[str],
    digests: Sequence[str | None],
) -> list[Side]:
    """A side for each target, one or two, with its series not begun yet.

    Args:
        series: the options of the series.
        targets: what to run, one target for each side.
        store: where the series are written.
        command: the words of the command line, which the series records.
        digests: the digest of each target's configuration before a run's own seed is set.
    """
    name = series.name or secrets.token_hex(_NAME_BYTES)
    series_ids = [series_id_of(name, None)]
    if len(targets) > 1:
        series_ids = [series_id_of(name, side) for side in SIDES]
    started_at = utc_now()
    sides = []
    for index, (target, series_id, digest) in enumerate(zip(targets, series_ids, digests, strict=True)):
        options = target.request.options
        runs = planned_runs(name, series_id, series.count, options.seed)
        if options.nodes > 1 and is_another_node(options.node_rank, os.environ):
            sides.append(Side(target, runs, None))
            continue
        interleaved_with = None
        if len(series_ids) > 1:
            interleaved_with = series_ids[1 - index]
        document = SeriesDocument(
            series_id=series_id,
            nonce=name,
            nonce_by=_who_named(series),
            seeds=_how_seeded(options),
            token=secrets.token_hex(_TOKEN_BYTES),
            flagbench=Builder(__version__, commit()),
            request=_request_document(target, command, digest),
            requested=series.count,
            runs=runs,
            started_at=started_at,
            interleaved_with=interleaved_with,
        )
        sides.append(Side(target, runs, SeriesWriter(store, document)))
    return sides


def _who_named(series: SeriesOptions) -> Literal["flagbench", "user"]:
    """Who chose the name of the series."""
    if series.name is None:
        return "flagbench"
    return "user"


def _how_seeded(options: LocalOptions) -> Literal["derived", "given"]:
    """Whether each run has a seed derived from the series' name, or all have the one that the user gave."""
    if options.seed is None:
        return "derived"
    return "given"


def _request_document(target: Target, command: Sequence[str], digest: str | None) -> SeriesRequest:
    """The section of the series document on the command that began the series."""
    return SeriesRequest(
        command=tuple(redact(word) for word in command),
        case=target.request.case.name,
        stack=target.request.stack.name,
        via=target.via,
        image=target.image,
        config_digest=digest,
    )


def run_sides(
    sides: Sequence[Side], run: Callable[[Target], Finished], *, until: Callable[[int], bool] | None = None
) -> int:
    """Run all planned runs in order and store the series. Returns the exit code of the first run that failed.

    The series is stored even if it is interrupted. Raises FlagbenchError if the series cannot be begun, or its first
    run cannot be started: then nothing was run, and there is no series.

    Args:
        sides: the one or two images with their planned runs.
        run: runs a target to its end and stores its record.
        until: called with the exit code of each run that has ended; if it returns True, no more runs are made.
    """
    with Delaying() as delaying:
        _begin_series(sides)
        try:
            code = _run_turns(sides, run, until, delaying)
        finally:
            all_stored = _store_series(sides)
    if code == ExitCode.OK and not all_stored:
        return int(ExitCode.NOT_STORED)
    return code


def _run_turns(
    sides: Sequence[Side],
    run: Callable[[Target], Finished],
    until: Callable[[int], bool] | None,
    delaying: Delaying,
) -> int:
    """Make the runs in order until one ends the series. Returns the first exit code that is not 0."""
    first_failure = int(ExitCode.OK)
    turns = [*_runs_in_turn(sides)]
    for number, (side, planned) in enumerate(turns, 1):
        label = ""
        if len(sides) > 1:
            label = f" ({side.target.name})"
        print_note(f"flagbench: run {number} of {len(turns)}{label}, {planned.run_id}, seed {planned.seed}")
        ended = _run_planned(side, planned, run, is_first=number == 1)
        first_failure = first_failure or ended.code
        if ended.ends_series or delaying.signalled is not None:
            # The series is interrupted, even if its last run still ended well.
            return first_failure or int(ExitCode.INTERRUPTED)
        if until is not None and until(ended.code):
            break
    return first_failure


def _begin_series(sides: Sequence[Side]) -> None:
    """Reserve the ids of all series. If one cannot be reserved, release the others and raise StoreError."""
    begun: list[SeriesWriter] = []
    try:
        for side in sides:
            if side.writer is not None:
                side.writer.begin()
                begun.append(side.writer)
    except FlagbenchError:
        for writer in begun:
            writer.abandon()
        raise


def _runs_in_turn(sides: Sequence[Side]) -> Iterator[tuple[Side, SeriesRun]]:
    """The runs in the order A B B A A B ..., so that a slow drift, such as warming up, affects both sides alike."""
    for number in range(len(sides[0].runs)):
        in_turn = list(sides)
        if number % 2 == 1:
            in_turn.reverse()
        for side in in_turn:
            yield side, side.runs[number]


class _RunEnd(NamedTuple):
    """The end of one run of a series."""

    code: int
    """The exit code."""
    ends_series: bool
    """Whether no more runs may follow: it was interrupted, refused, or could not be started."""


def _run_planned(side: Side, planned: SeriesRun, run: Callable[[Target], Finished], *, is_first: bool) -> _RunEnd:
    """Run once and add the run to its series. Raises FlagbenchError if the first run cannot be started."""
    started_at = utc_now()
    start = elapsed()
    if side.writer is not None:
        side.writer.started.add(planned.run)
    try:
        finished = run(side.target.with_options(run_id=planned.run_id, seed=planned.seed))
    except FlagbenchError as error:
        if is_first:
            _forget_start(side, planned)
            raise
        print_error(error.message, error.remedy)
        seconds = round(elapsed() - start, 3)
        reason = redact(f"it could not be started: {error.message}")
        _add_run(side, _failed_run(planned, int(error.code), started_at, seconds, reason))
        return _RunEnd(int(error.code), ends_series=True)
    has_record = bool(finished.result.record.strip())
    if finished.refused and is_first:
        _forget_start(side, planned)
    elif not has_record:
        _give_up_series(side)
    else:
        if not finished.refused:
            _keep_content(side, planned, finished)
        _add_run(side, _describe_finished(planned, finished))
    interrupted = finished.code == ExitCode.INTERRUPTED or finished.result.signalled
    return _RunEnd(finished.code, ends_series=interrupted or finished.refused)


def _give_up_series(side: Side) -> None:
    """Remove the series of a node that turns out not to be node 0: it prints no records, so it has no series.

    Only the image knows all of the platform's variables that tell a node its number.
    """
    if side.writer is not None and not side.contents:
        side.writer.abandon()
        side.writer = None


def _keep_content(side: Side, planned: SeriesRun, finished: Finished) -> None:
    """Keep the record of a run for the verdict; if it could not be stored, also to print it at the end."""
    content = finished.result.record
    side.contents[planned.run] = content
    if not finished.kept:
        side.unstored.append(content)


def _forget_start(side: Side, planned: SeriesRun) -> None:
    """Note that the run could not be started."""
    if side.writer is not None:
        side.writer.started.discard(planned.run)


def _add_run(side: Side, run: SeriesRun) -> None:
    """Add a run that has ended to its series. If that cannot be stored now, it is stored with the whole series."""
    if side.writer is None:
        return
    try:
        side.writer.add(run)
    except StoreError as error:
        print_note(f"warning: that run {run.run} ended is not stored yet: {error.message}")
    record = side.read(run.run)
    if record is not None:
        side.writer.describe(record.system.image)


def _describe_finished(planned: SeriesRun, finished: Finished) -> SeriesRun:
    """The planned run with what is known after it has ended, as the series document has it."""
    launch = finished.launch
    content = finished.result.record
    try:
        record = read_record(content)
    except RecordError as error:
        return _failed_run(planned, finished.code, launch.started_at, launch.seconds, error.message)
    record_id: str | None = record.record_id
    sha256: str | None = hashlib.sha256(content).hexdigest()
    if finished.refused:
        # Nothing was run, and its record is not stored.
        record_id = sha256 = None
    return replace(
        planned,
        state=record.status.state,
        exit_code=finished.code,
        record_id=record_id,
        sha256=sha256,
        created_at=record.created_at,
        config_digest=record.config_digest,
        started_at=launch.started_at,
        seconds=launch.seconds,
        reason=record.status.reason,
    )


def _failed_run(planned: SeriesRun, code: int, started_at: str, seconds: float, reason: str) -> SeriesRun:
    """The planned run as one that failed without a valid record."""
    return replace(
        planned, state="failed", exit_code=code, started_at=started_at, seconds=seconds, reason=visible(reason)
    )


def _store_series(sides: Sequence[Side]) -> bool:
    """Store each series, or remove all if no run was started. Returns whether all are stored; prints failures."""
    all_stored = True
    any_started = any(side.writer is not None and side.writer.started for side in sides)
    for side in sides:
        if side.writer is None:
            continue
        if not any_started:
            side.writer.abandon()
            side.writer = None
            continue
        try:
            location = side.writer.finish(utc_now())
            print_note(f"series {side.writer.series.series_id} kept in {location}")
        except StoreError as error:
            side.stored = False
            all_stored = False
            print_error(error.message, f"{error.remedy}; the series is on stdout")
    return all_stored
