"""Several runs as a series: of one image one after another, or of two in turn."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

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
"""Random bytes in a generated name."""


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
        return (self.repeat, self.interleave, self.name) != (None, None, None)

    @property
    def count(self) -> int:
        """Runs of each side."""
        return self.repeat or 1

    @property
    def facts(self) -> dict[str, str | int | None]:
        """The series as a dry run prints it."""
        return {"repeat": self.count, "interleave": self.interleave, "name": self.name or "random"}


@dataclass
class Side:
    """An image and the series of its runs."""

    target: Target
    runs: tuple[SeriesRun, ...]
    """The planned runs, in order."""
    writer: SeriesWriter | None
    """None on nodes other than node 0, which alone writes the series."""
    contents: dict[int, bytes] = field(default_factory=dict)
    """The record of each run, as it was stored or should have been."""
    unstored: list[bytes] = field(default_factory=list)
    """Records that could not be stored."""
    stored: bool = True
    """Whether the series itself is stored, once it has ended."""

    def read(self, run: int) -> Record | None:
        """The record of a run; None where it left no valid one."""
        if run not in self.contents:
            return None
        try:
            return read_record(self.contents[run])
        except RecordError:
            return None

    @property
    def series(self) -> Series | None:
        """The series with the records of its runs."""
        if self.writer is None:
            return None
        return with_records(self.writer.series, lambda run: self.contents.get(run.run))


def check_series(series: SeriesOptions, options: LocalOptions) -> None:
    """Raise FlagbenchError (usage) for a name that is not valid, and for options that do not fit a series."""
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
    """A side for each target, its series not begun yet.

    Args:
        command: the words of the command line.
        digests: of each target's configuration before a run's own seed is set.
    """
    name = series.name or secrets.token_hex(_NAME_BYTES)
    named_by: Literal["flagbench", "user"] = "user"
    if series.name is None:
        named_by = "flagbench"
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
        seeds: Literal["derived", "given"] = "given"
        if options.seed is None:
            seeds = "derived"
        document = SeriesDocument(
            series_id=series_id,
            nonce=name,
            nonce_by=named_by,
            seeds=seeds,
            token=secrets.token_hex(16),
            flagbench=Builder(__version__, commit()),
            request=SeriesRequest(
                command=tuple(redact(word) for word in command),
                case=target.request.case.name,
                stack=target.request.stack.name,
                via=target.via,
                image=target.image,
                config_digest=digest,
            ),
            requested=series.count,
            runs=runs,
            started_at=started_at,
            interleaved_with=interleaved_with,
        )
        sides.append(Side(target, runs, SeriesWriter(store, document)))
    return sides


def run_sides(
    sides: Sequence[Side], run: Callable[[Target], Finished], *, until: Callable[[int], bool] | None = None
) -> int:
    """Run everything in order and store the series; the exit code is that of the first run that did not end well.

    What was run stays in the series if the rest is interrupted. Raises FlagbenchError where the series could not be
    begun, or where its first run could not be started: then nothing was run, and there is no series.

    Args:
        run: runs a target to its end and stores what it left.
        until: called with a run's exit code once it has ended and is noted; whether the rest is not to be run.
    """
    codes: list[int] = []
    with Delaying() as delaying:
        _begin(sides)
        stored = True
        try:
            turns = [*_turns(sides)]
            for number, (side, planned) in enumerate(turns, 1):
                label = ""
                if len(sides) > 1:
                    label = f" ({side.target.name})"
                print_note(f"flagbench: run {number} of {len(turns)}{label}, {planned.run_id}, seed {planned.seed}")
                code, continues = _run_planned(side, planned, run, first=number == 1)
                codes.append(code)
                if not continues or delaying.signalled is not None:
                    codes.append(int(ExitCode.INTERRUPTED))  # even where the run at hand still ended well
                    break
                if until is not None and until(code):
                    break
        finally:
            stored = _end(sides)
    for code in codes:
        if code != ExitCode.OK:
            return code
    if not stored:
        return int(ExitCode.NOT_STORED)
    return int(ExitCode.OK)


def _begin(sides: Sequence[Side]) -> None:
    """Reserve the ids of all series, or of none. Raises StoreError."""
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


def _turns(sides: Sequence[Side]) -> Iterator[tuple[Side, SeriesRun]]:
    """The runs in the order A B B A A B ..., so that a slow drift, such as warming up, affects both sides alike."""
    for number in range(len(sides[0].runs)):
        in_turn = list(sides)
        if number % 2 == 1:
            in_turn.reverse()
        for side in in_turn:
            yield side, side.runs[number]


def _run_planned(
    side: Side, planned: SeriesRun, run: Callable[[Target], Finished], *, first: bool
) -> tuple[int, bool]:
    """Run once and note it: the exit code, and whether the next run is due.

    Raises FlagbenchError where the first run could not be started.
    """
    started_at, start = utc_now(), elapsed()
    if side.writer is not None:
        side.writer.started.add(planned.run)
    try:
        finished = run(side.target.with_options(run_id=planned.run_id, seed=planned.seed))
    except FlagbenchError as error:
        if first:
            _forget_start(side, planned)
            raise
        print_error(error.message, error.remedy)
        seconds = round(elapsed() - start, 3)
        reason = redact(f"it could not be started: {error.message}")
        _note(side, _failed(planned, int(error.code), started_at, seconds, reason))
        return int(error.code), False
    if finished.refused and first:
        _forget_start(side, planned)
    elif not finished.result.record.strip():
        # Another node, as only its platform's variables say: it has no records, and so no series.
        if side.writer is not None and not side.contents:
            side.writer.abandon()
            side.writer = None
    else:
        if not finished.refused:
            _keep_content(side, planned, finished)
        _note(side, _describe_finished(planned, finished))
    interrupted = finished.code == ExitCode.INTERRUPTED or finished.result.signalled
    return finished.code, not interrupted and not finished.refused


def _keep_content(side: Side, planned: SeriesRun, finished: Finished) -> None:
    """Keep the record of a run for the verdict, and to be printed at the end where it could not be stored."""
    content = finished.result.record
    side.contents[planned.run] = content
    if not finished.kept:
        side.unstored.append(content)


def _forget_start(side: Side, planned: SeriesRun) -> None:
    """Note that the run could not be started."""
    if side.writer is not None:
        side.writer.started.discard(planned.run)


def _note(side: Side, run: SeriesRun) -> None:
    """Add a run that has ended to the series. What cannot be stored now is stored at the end, or reported then."""
    if side.writer is None:
        return
    try:
        side.writer.add(run)
    except StoreError as error:
        print_note(f"warning: that run {run.run} ended is not stored yet: {error.message}")
    if record := side.read(run.run):
        side.writer.describe(record.system.image)


def _describe_finished(planned: SeriesRun, finished: Finished) -> SeriesRun:
    """The run of the series document after it has ended."""
    launch, content = finished.launch, finished.result.record
    try:
        record = read_record(content)
    except RecordError as error:
        return _failed(planned, finished.code, launch.started_at, launch.seconds, error.message)
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


def _failed(planned: SeriesRun, code: int, started_at: str, seconds: float, reason: str) -> SeriesRun:
    return replace(
        planned, state="failed", exit_code=code, started_at=started_at, seconds=seconds, reason=visible(reason)
    )


def _end(sides: Sequence[Side]) -> bool:
    """Store each series, or forget those of which nothing was run. Whether all are stored; failures are reported."""
    stored = True
    writers = [(side, side.writer) for side in sides if side.writer is not None]
    any_started = any(writer.started for _, writer in writers)
    for side, writer in writers:
        if not any_started:
            writer.abandon()
            continue
        try:
            location = writer.finish(utc_now())
            print_note(f"series {writer.series.series_id} kept in {location}")
        except StoreError as error:
            stored = side.stored = False
            print_error(error.message, f"{error.remedy}; the series is on stdout")
    return stored
