"""The types of a series (`series/v1`), the JSON document of runs that were requested together, in their order.

`flagbench run --repeat` plans a series; `series` writes it to a store and reads it. The ids and seeds of its runs are
computed from its name, so that they can be checked. The JSON Schema of a series is generated from this file: types
become its rules, and the docstrings of SeriesDocument and its parts its descriptions. They speak of JSON, so a field
that is None here is null there.
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
"""The most runs of a series."""
MAX_SERIES_BYTES = 4 * 2**20
"""The largest size of a document in bytes. The document of a series with MAX_RUNS runs is smaller."""
LONGEST_NAME = 64
"""The most characters of a series' name: the id of a run, which begins with it, has at most 128."""
SERIES_NAME = re.compile(rf"[0-9A-Za-z][0-9A-Za-z_-]{{0,{LONGEST_NAME - 1}}}")
"""The form of a series' name, which becomes part of run ids and file names."""
MAX_SEED = 2**31 - 1
"""The largest seed: the largest signed integer of 32 bits."""
MAX_SECONDS = 1e9
"""The largest duration of a run, seconds: 32 years. A larger number in a document is an error."""
SIDES = ("a", "b")
"""The sides of two interleaved series, whose runs alternate. A is run first."""

Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
"""A sha256 in hexadecimal."""
State = Literal["ok", "failed", "interrupted", "missing", "not_run"]
"""How a run of a series ended; see `SeriesRun.state`."""


class SeriesError(FlagbenchError):
    """A series cannot be read, or a document is not a series. Its exit code is DATA."""

    def __init__(
        self, message: str, *, remedy: str = "give the series as `flagbench run --repeat` stored it"
    ) -> None:
        super().__init__(message, remedy=remedy, code=ExitCode.DATA)


class SeriesRun(Struct, frozen=True):
    """One run of a series. A field is null if its value is not known."""

    run: PositiveCount
    """The number of the run in the series, counted from 1."""
    run_id: RunId
    """The id of the run: the id of the series, a hyphen, and the number of the run."""
    seed: Annotated[int, Meta(ge=0, le=MAX_SEED)]
    """The random seed of the run."""
    state: State
    """How the run ended: `ok`, `failed` or `interrupted` as in its record; `missing` if it was due but nothing shows
    how it ended; `not_run` if the series ended before the run was started."""
    exit_code: Count | None = None
    """The exit code of the run."""
    record_id: RecordId | None = None
    """The id of the record that the run produced."""
    sha256: Sha256 | None = None
    """The sha256 of the record's bytes, including the final newline, in hexadecimal."""
    created_at: Time | None = None
    """The time at which the record was made, UTC."""
    config_digest: Digest | None = None
    """The digest of the configuration in the record."""
    started_at: Time | None = None
    """The time at which the run was launched, UTC, by the clock of the host."""
    seconds: Annotated[float, Meta(ge=0, le=MAX_SECONDS)] | None = None
    """The duration of the run from launch to end in seconds, by the clock of the host that launched it."""
    reason: str | None = None
    """Why the run did not end with the state `ok`, in words."""


class SeriesRequest(Struct, frozen=True):
    """The request for a series: what each of its runs executes, and where."""

    command: tuple[str, ...]
    """The words of the command line after `flagbench`."""
    case: Name
    """The name of the case, which is the workload."""
    stack: Name
    """The name of the stack, which is the software for a family of devices."""
    via: Name
    """The launcher of the runs, such as `native` or `docker`."""
    image: str | None = None
    """The image as the user named it; null for a native run."""
    image_digest: str | None = None
    """The digest of the image, from the first record of the series."""
    image_id: str | None = None
    """The id of the image, from the first record of the series."""
    config_digest: Digest | None = None
    """The digest of the configuration before the seed of a run is set; null if the host could not resolve the
    configuration."""


class SeriesDocument(Struct, frozen=True):
    """A series: runs that were requested together, in their order. The series may still be running."""

    VERSION: ClassVar[str] = "series/v1"

    series_id: RunId
    """The id of the series: its name, and `-a` or `-b` if it is one of two interleaved series."""
    nonce: Annotated[str, Meta(pattern=rf"^{SERIES_NAME.pattern}\Z")]
    """The name of the series. Two interleaved series have the same name."""
    nonce_by: Literal["user", "flagbench"]
    """Who chose the name: the user with --name, or flagbench at random."""
    seeds: Literal["derived", "given"]
    """How the seeds of the runs were chosen: `derived` from the name, a different one for each run; or `given` with
    --seed, the same for all runs."""
    token: Annotated[str, Meta(pattern=r"^[0-9a-f]{16,64}\Z")]
    """Random hexadecimal digits, so that the documents of two series with the same name always differ."""
    flagbench: Builder
    """The version of flagbench that planned the series."""
    request: SeriesRequest
    """What each run executes, and where."""
    requested: Annotated[int, Meta(ge=1, le=MAX_RUNS)]
    """The number of runs that were requested."""
    runs: Annotated[tuple[SeriesRun, ...], Meta(min_length=1, max_length=MAX_RUNS)]
    """The runs in order, including those that have not been started."""
    started_at: Time
    """The time at which the series started, UTC."""
    ended_at: Time | None = None
    """The time at which the series ended, UTC; null if it has not ended or was killed."""
    interleaved_with: RunId | None = None
    """The id of the other series if the runs of two series alternate; else null."""
    looks: tuple[PositiveCount, ...] | None = None
    """The numbers of finished runs after which the series may end early if its verdict is decided. They are fixed
    before the first run. Null if the series never ends early."""

    @property
    def ended_by_rule(self) -> bool:
        """Whether the series ended because its verdict was decided at one of its looks, so no more runs were needed.

        That requires that all runs up to the look ended with the state `ok`.
        """
        if self.looks is None:
            return False
        runs_made = [run for run in self.runs if run.state != "not_run"]
        return len(runs_made) in self.looks and all(run.state == "ok" for run in runs_made)

    def with_run(self, new_run: SeriesRun) -> SeriesDocument:
        """Return the series with `new_run` in place of the run that has the same number."""
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
        """Return the document as it is stored: indented JSON in UTF-8, with a final newline."""
        return msgspec.json.format(msgspec.json.encode(self.to_dict()), indent=1) + b"\n"


def check_series_name(name: str) -> None:
    """Check that a name can be part of a run's id and of a file's name. Raises FlagbenchError (USAGE)."""
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

    The seed depends on the name of a series and not on its id. So the runs with the same number in two interleaved
    series, which have the same name, have the same seed and do the same work.
    """
    digest = hashlib.sha256(f"{name}-{run}".encode()).digest()
    return int.from_bytes(digest[:4], "big") & MAX_SEED


def planned_runs(name: str, series_id: str, count: int, seed: int | None) -> tuple[SeriesRun, ...]:
    """Return the runs of a series before the first one has started.

    Args:
        name: the name of the series, from which seeds are derived.
        series_id: the id of the series, which is the start of the ids of its runs.
        count: the number of runs.
        seed: the seed of all runs; None if each run has a seed that is derived from the name.
    """
    runs = []
    for number in range(1, count + 1):
        run_seed = seed
        if run_seed is None:
            run_seed = seed_of(name, number)
        runs.append(SeriesRun(number, run_id_of(series_id, number), run_seed, "missing"))
    return tuple(runs)


def is_series(content: bytes) -> bool:
    """Return whether a document has the `schema` of a series, of any version."""
    try:
        schema = msgspec.json.decode(content, type=_SchemaField).schema
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return isinstance(schema, str) and schema.startswith("series/")


def parse_series(content: bytes, name: str) -> SeriesDocument:
    """Parse the JSON of a series. Whether its fields are consistent with each other is not checked.

    Args:
        content: the document.
        name: the name of the document in messages.

    Raises SeriesError if it is too large, or not a valid series of this version.
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
    """The only field of a document that is read before its kind and version are known."""

    schema: Any = None
    """The kind and the version, such as `series/v1`."""
