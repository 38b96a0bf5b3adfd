"""A series as typed data, `series/v1`: a document of the runs that were requested together, in their order.

`flagbench run --repeat` plans one; `series` writes it to a store and reads it. The ids and seeds of its runs are
computed from its name, so that they can be checked. The JSON Schema is generated from this file: the docstrings of
SeriesDocument and its parts are its descriptions.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from flagbench.console.terminal import brief
from flagbench.errors import FlagbenchError
from flagbench.records.model import Builder
from flagbench.records.scalars import Count, Digest, Name, PositiveCount, RecordId, RunId, Time
from flagbench_core.exit_codes import ExitCode

MAX_RUNS = 1000
MAX_SERIES_BYTES = 4 * 2**20
"""The size limit of a document; one of MAX_RUNS runs is smaller."""
LONGEST_NAME = 64
"""Most characters of a series' name: the id of a run, which begins with it, has at most 128."""
SERIES_NAME = re.compile(rf"[0-9A-Za-z][0-9A-Za-z_-]{{0,{LONGEST_NAME - 1}}}")
MAX_SEED = 2**31 - 1
"""The largest seed: the largest signed integer of 32 bits."""
MAX_SECONDS = 1e9
"""No run takes longer: 32 years."""
SIDES = ("a", "b")
"""The sides of two interleaved series, whose runs alternate. A is run first."""

Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
State = Literal["ok", "failed", "interrupted", "missing", "not_run"]


class SeriesError(FlagbenchError):
    """A series cannot be read, or a document is not a series (DATA)."""

    def __init__(
        self, message: str, *, remedy: str = "give the series as `flagbench run --repeat` stored it"
    ) -> None:
        super().__init__(message, remedy=remedy, code=ExitCode.DATA)


class SeriesRun(Struct, frozen=True):
    """One run of a series. What is unknown is None."""

    run: PositiveCount
    """Its number, from 1."""
    run_id: RunId
    seed: Annotated[int, Meta(ge=0, le=MAX_SEED)]
    state: State
    """`missing`: it was due, and nothing says how it ended; `not_run`: the series ended before it was started."""
    exit_code: Count | None = None
    record_id: RecordId | None = None
    sha256: Sha256 | None = None
    """Of the record, with its final newline."""
    created_at: Time | None = None
    """When the record was made, UTC."""
    config_digest: Digest | None = None
    """Of the configuration in the record."""
    started_at: Time | None = None
    seconds: Annotated[float, Meta(ge=0, le=MAX_SECONDS)] | None = None
    """From start to end, by the clock of the host that launched it."""
    reason: str | None = None


class SeriesRequest(Struct, frozen=True):
    """What was asked for."""

    command: tuple[str, ...]
    """The words of the command line after `flagbench`."""
    case: Name
    stack: Name
    via: Name
    image: str | None = None
    """As the user named it; None for a native run."""
    image_digest: str | None = None
    image_id: str | None = None
    """Both as the first record has them."""
    config_digest: Digest | None = None
    """Of the configuration before a run's own seed is set; None where the host could not resolve it."""


class SeriesDocument(Struct, frozen=True):
    """A series, ended or not."""

    VERSION: ClassVar[str] = "series/v1"

    series_id: RunId
    nonce: Annotated[str, Meta(pattern=rf"^{SERIES_NAME.pattern}\Z")]
    """The name of the series; two interleaved series have the same."""
    nonce_by: Literal["user", "flagbench"]
    """Who chose the name: the user with --name, or flagbench at random."""
    seeds: Literal["derived", "given"]
    """`derived` from the name; `given` with --seed, the same for all runs."""
    token: Annotated[str, Meta(pattern=r"^[0-9a-f]{16,64}\Z")]
    """Random, so that two series with one name are never the same bytes."""
    flagbench: Builder
    request: SeriesRequest
    requested: Annotated[int, Meta(ge=1, le=MAX_RUNS)]
    runs: Annotated[tuple[SeriesRun, ...], Meta(min_length=1, max_length=MAX_RUNS)]
    started_at: Time
    ended_at: Time | None = None
    """None: it has not ended, or was killed."""
    interleaved_with: RunId | None = None
    """The id of the series whose runs alternate with these."""
    looks: tuple[PositiveCount, ...] | None = None
    """The numbers of runs after which it may end because its verdict is decided, fixed in advance."""

    @property
    def ended_by_rule(self) -> bool:
        """Whether the series ended because its verdict was decided at one of its looks, so no more runs were needed.

        All runs up to then must have ended well.
        """
        if self.looks is None:
            return False
        runs_made = [run for run in self.runs if run.state != "not_run"]
        return len(runs_made) in self.looks and all(run.state == "ok" for run in runs_made)

    def with_run(self, new_run: SeriesRun) -> SeriesDocument:
        """Return the series with the run of the same number replaced."""
        runs = []
        for run in self.runs:
            if run.run == new_run.run:
                runs.append(new_run)
            else:
                runs.append(run)
        return replace(self, runs=tuple(runs))

    def to_dict(self) -> dict[str, Any]:
        """Return the series as a JSON object, as it is stored and as `flagbench run --repeat --json` prints it."""
        return {"schema": self.VERSION, **msgspec.to_builtins(self)}

    def to_json(self) -> bytes:
        """Return the bytes that are stored."""
        return msgspec.json.format(msgspec.json.encode(self.to_dict()), indent=1) + b"\n"


def check_series_name(name: str) -> None:
    """Raise FlagbenchError (usage) for a name that cannot be part of a run's id and of a file's name."""
    if SERIES_NAME.fullmatch(name) is None:
        raise FlagbenchError(
            f"--name '{brief(name)}' is not valid",
            remedy=f"use at most {LONGEST_NAME} ASCII letters, digits, '_' and '-', a letter or digit first",
        )


def series_id_of(name: str, side: str | None = None) -> str:
    """Return the id of a series: its name, followed by the side if it is one of two interleaved series."""
    if side is None:
        return name
    return f"{name}-{side}"


def run_id_of(series_id: str, run: int) -> str:
    """Return the id of a run of a series; runs are counted from 1."""
    return f"{series_id}-{run}"


def seed_of(name: str, run: int) -> int:
    """Return the seed of a run: the first four bytes of the sha256 of `NAME-RUN`, without the highest bit.

    It depends on the name and not on the id of a series: runs with the same number of two interleaved series have the
    same seed, and so do the same work.
    """
    digest = hashlib.sha256(f"{name}-{run}".encode()).digest()
    return int.from_bytes(digest[:4], "big") & MAX_SEED


def planned_runs(name: str, series_id: str, count: int, seed: int | None) -> tuple[SeriesRun, ...]:
    """Return the runs of a series before any has ended.

    Args:
        seed: the seed of all runs; None if each has a seed that is derived from the name.
    """
    runs = []
    for number in range(1, count + 1):
        run_seed = seed
        if run_seed is None:
            run_seed = seed_of(name, number)
        runs.append(SeriesRun(number, run_id_of(series_id, number), run_seed, "missing"))
    return tuple(runs)


def is_series(content: bytes) -> bool:
    """Return whether a document calls itself a series, of any version."""
    try:
        schema = msgspec.json.decode(content, type=_SchemaField).schema
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return isinstance(schema, str) and schema.startswith("series/")


def parse_series(content: bytes, name: str) -> SeriesDocument:
    """Return the series in a document, which errors call `name`. Whether it is consistent is not checked.

    Raises SeriesError (DATA) for anything else.
    """
    if len(content) > MAX_SERIES_BYTES:
        raise SeriesError(f"{name} has {len(content):,} bytes, more than the {MAX_SERIES_BYTES:,} of a series")
    try:
        version = msgspec.json.decode(content, type=_SchemaField).schema
        if version != SeriesDocument.VERSION:
            raise SeriesError(
                f"{name} is {brief(str(version))}; this flagbench reads {SeriesDocument.VERSION}",
                remedy="upgrade flagbench",
            )
        return msgspec.json.decode(content, type=SeriesDocument)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise SeriesError(f"{name} is not a valid {SeriesDocument.VERSION}: {brief(str(error))}") from None


class _SchemaField(Struct):
    """The field of a document that names its kind and its version."""

    schema: Any = None
