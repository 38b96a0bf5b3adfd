"""Several runs as a series: of one image one after another, or of two in turn."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from flagbench import complete
from flagbench.checkout import commit
from flagbench.errors import FlagbenchError
from flagbench.options import Text
from flagbench.records.model import Builder, Record
from flagbench.records.read import RecordError, read_record
from flagbench.records.series import Series, with_records
from flagbench.records.series_document import (
    MAX_RUNS,
    SIDES,
    SeriesDocument,
    SeriesRequest,
    SeriesRun,
    check_nonce,
    planned_runs,
    series_id_of,
)
from flagbench.records.series_writer import SeriesWriter
from flagbench.records.store import Store
from flagbench.runs.launchers.clock import utc_now
from flagbench.runs.launchers.container import is_another_node
from flagbench.runs.request import LocalOptions
from flagbench.runs.target import Target
from flagbench_core import __version__
from flagbench_core.redaction import redact

_NONCE_BYTES = 8


@dataclass(frozen=True)
class SeriesOptions:
    """What makes a run a series."""

    GROUP: ClassVar = "Series"

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
    nonce: Annotated[
        Text,
        typer.Option(
            metavar="TEXT",
            help="Name of the series, chosen by its verifier: run ids and seeds follow. Default: random.",
        ),
    ] = None

    @property
    def asked(self) -> bool:
        """Whether a series is asked for; a nonce alone makes one of a single run."""
        return (self.repeat, self.interleave, self.nonce) != (None, None, None)

    @property
    def count(self) -> int:
        """Runs of each side."""
        return self.repeat or 1

    @property
    def facts(self) -> dict[str, str | int | None]:
        """What a dry run says of it."""
        return {"repeat": self.count, "interleave": self.interleave, "nonce": self.nonce or "random"}


@dataclass
class Side:
    """One of the images, with its series."""

    target: Target
    runs: tuple[SeriesRun, ...]
    """As they are planned."""
    writer: SeriesWriter | None
    """None on another node than node 0, which alone writes the series."""
    contents: dict[int, bytes] = field(default_factory=dict)
    """The record of each run, as it was stored or should have been."""
    unstored: list[bytes] = field(default_factory=list)
    """Records that could not be stored."""
    stored: bool = True
    """Whether the series itself is stored, once it has ended."""

    def read(self, run: int) -> Record | None:
        """The record of a run; None where it left no valid one."""
        with suppress(RecordError):
            return read_record(self.contents[run]) if run in self.contents else None
        return None

    @property
    def series(self) -> Series | None:
        """The series with the records of its runs."""
        if self.writer is None:
            return None
        return with_records(self.writer.series, lambda run: self.contents.get(run.run))


def check_series(series: SeriesOptions, options: LocalOptions, ticket: Path | None) -> None:
    """Raise FlagbenchError (usage) for a nonce that is not valid, and for options that do not fit a series."""
    if series.nonce is not None:
        check_nonce(series.nonce)
    if not series.asked:
        return
    for name, given, remedy in (
        ("--run-id", options.run_id, "leave it out: the ids of the runs follow from --nonce"),
        ("--ticket", ticket, "a ticket is for one run: run it once, or give keys with --store"),
    ):
        if given is not None:
            raise FlagbenchError(f"{name} and a series contradict each other", remedy=remedy)
    if options.nodes > 1 and series.nonce is None:
        raise FlagbenchError(
            "a series on several nodes needs --nonce",
            remedy="give the same --nonce on all nodes: run ids follow from it",
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
    nonce = series.nonce or secrets.token_hex(_NONCE_BYTES)
    names = [series_id_of(nonce, side) for side in (SIDES if len(targets) > 1 else (None,))]
    started_at = utc_now()
    sides = []
    for index, (target, series_id, digest) in enumerate(zip(targets, names, digests, strict=True)):
        options = target.request.options
        runs = planned_runs(nonce, series_id, series.count, options.seed)
        if options.nodes > 1 and is_another_node(options.node_rank, os.environ):
            sides.append(Side(target, runs, None))
            continue
        document = SeriesDocument(
            series_id=series_id,
            nonce=nonce,
            nonce_by="flagbench" if series.nonce is None else "user",
            seeds="derived" if options.seed is None else "given",
            token=secrets.token_hex(16),
            flagbench=Builder(__version__, commit()),
            request=SeriesRequest(
                command=tuple(map(redact, command)),
                case=target.request.case.name,
                stack=target.request.stack.name,
                via=target.via,
                image=target.image,
                config_digest=digest,
            ),
            requested=series.count,
            runs=runs,
            started_at=started_at,
            interleaved_with=names[1 - index] if len(names) > 1 else None,
        )
        sides.append(Side(target, runs, SeriesWriter(store, document)))
    return sides
