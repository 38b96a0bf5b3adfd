"""Reads records strictly, since a record may come from anywhere: from a run, a store, a bundle or a person.

A record is JSON without NaN, huge numbers or duplicate fields. Its version is checked first, then its types and
limits. The standard library parses it, because msgspec's own decoder takes the last of duplicate fields, and numbers
of any size. msgspec then checks it and converts it to a `model.Record`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec
from msgspec.structs import asdict

from flagbench.console.terminal import brief, visible
from flagbench.errors import FlagbenchError
from flagbench.records.evidence import Packed
from flagbench.records.model import Rank, RankColumns, Record
from flagbench.system.clock import parse_utc
from flagbench.system.files import read_input, read_stdin, reason
from flagbench_core.exit_codes import ExitCode

RECORD_VERSION = Record.VERSION

MAX_RECORD_BYTES = 1_000_000
"""The size limit of a record. Runs keep to it; a larger file is refused without reading it."""
MAX_VALUES = 300_000
"""Most commas and opening brackets in a record: their number bounds the memory and time that parsing takes."""
MAX_DEPTH = 64
"""Most levels of nested objects and arrays."""
LARGEST = 1e150
"""The largest magnitude of a number: sums, products and squares of such numbers are finite, too."""
DIGITS = 150
"""An integer of no more characters is not beyond LARGEST, and need not be compared with it."""
YEARS = range(1970, 2200)
"""The years in which a record can have been made; the clock of a machine that was never set shows 1970."""

_ONE_AT_A_TIME = Lock()
"""msgspec 0.22 builds its description of a type at its first use; a thread that finds half of it crashes."""
_GZIP_MAGIC = b"\x1f\x8b"
_NESTED = (dict, list)
_NESTED_TYPES = frozenset(_NESTED)
_REMEDY = "give the record as it was printed: stdout of a run, without its stderr"


class RecordError(FlagbenchError):
    """A record cannot be read, or a document is not a record (DATA)."""

    def __init__(self, message: str, *, remedy: str = _REMEDY) -> None:
        super().__init__(visible(message), remedy=remedy, code=ExitCode.DATA)


def read_record(source: Path | bytes | None, name: str = "the record") -> Record:
    """Read a record from a file, from standard input (None), or from bytes, which errors call `name`.

    Raises RecordError (DATA), which says what is wrong with it.
    """
    if isinstance(source, bytes):
        content = source
    else:
        content, name = read_content(source)
    return to_record(parse(content, name), name)


def to_record(raw: dict[str, Any], name: str = "the record") -> Record:
    """Return a parsed document as a record; errors call it `name`. Raises RecordError (DATA), as `read_record`."""
    try:
        return _convert(raw)
    except msgspec.ValidationError as error:
        fault = _validation_fault(error)
    except ValueError as error:
        fault = str(error)
    remedy = "give the record as the run printed it; if it was not edited, report this"
    raise RecordError(f"{name} is not a valid {RECORD_VERSION}: {fault}", remedy=remedy)


def _convert(raw: dict[str, Any]) -> Record:
    """Return a parsed document as a record.

    Raises ValueError, with the field's path first, or msgspec.ValidationError for one that is not valid.
    """
    with _ONE_AT_A_TIME:
        # `raw` last: a field of that name in the document is ignored.
        record = msgspec.convert({**raw, "raw": raw}, Record)
    if record.rank_columns is not None:
        try:
            ranks = _unpack_ranks(record.rank_columns, record.ranks)
        except ValueError as error:
            raise ValueError(f"rank_columns: {error}") from error
        record = msgspec.structs.replace(record, ranks=ranks)
    fault = date_fault(record.created_at)
    if fault is not None:
        raise ValueError(f"created_at: {fault}")
    return record


def _validation_fault(error: msgspec.ValidationError) -> str:
    """Return an error of msgspec as `FIELD: message`; msgspec has the field last, as in " - at `$.status.phase`"."""
    message, _, location = str(error).partition(" - at `$")
    path = location.removeprefix(".").removesuffix("`")
    if not path:
        return brief(message)
    return f"{brief(path)}: {brief(message)}"


def read_content(file: Path | None) -> tuple[bytes, str]:
    """Return the bytes of a file or of standard input (None), and what errors call it. Raises RecordError."""
    remedy = "name a file; `flagbench results ls` shows the stored records"
    if file is None:
        name = "standard input"
        try:
            return read_stdin(MAX_RECORD_BYTES), name
        except OSError as error:
            raise RecordError(f"{name} cannot be read: {reason(error)}", remedy=remedy) from error
    name = brief(str(file))
    try:
        return read_input(file, MAX_RECORD_BYTES), name
    except OSError as error:
        raise RecordError(f"the record {name} cannot be read: {reason(error)}", remedy=remedy) from error


def parse(content: bytes, name: str) -> dict[str, Any]:
    """Parse the JSON object of a record without validating its fields; `name` is what errors call it.

    It must be UTF-8 without duplicate fields, lone surrogates, NaN or numbers beyond LARGEST, and keep to
    MAX_RECORD_BYTES, MAX_VALUES and MAX_DEPTH. Raises RecordError for anything else, and for JSON that is not a
    `record/v1`.
    """
    if content.startswith(_GZIP_MAGIC):
        raise RecordError(
            f"{name} is compressed by gzip",
            remedy="a bundle is checked by `flagbench bundle verify`; unpack any other file: <(zcat FILE)",
        )
    try:
        raw = _strict_json(content)
    except RecursionError as error:
        raise RecordError(f"{name} is not valid JSON: it is nested deeper than {MAX_DEPTH} levels") from error
    except ValueError as error:
        raise RecordError(f"{name} is not valid JSON: {error}") from error
    fields: dict[str, Any] = {}
    if isinstance(raw, dict):
        fields = raw
    version = fields.get("schema")
    if not isinstance(version, str) or not version.startswith("record/"):
        raise RecordError(
            f"{name} is JSON, but not a flagbench record: it has no schema field like '{RECORD_VERSION}'"
        )
    if version != RECORD_VERSION:
        raise RecordError(
            f"this record is {brief(version)}; this flagbench reads {RECORD_VERSION}", remedy="upgrade flagbench"
        )
    return fields


def _unpack_ranks(columns: RankColumns, listed: Sequence[Rank]) -> tuple[Rank, ...]:
    """Return every rank of a large job, of which only those that differ from most are listed.

    The other ranks are made from the columns. Raises ValueError for columns of another length.
    """
    if not columns.hosts or columns.ranks % len(columns.hosts) != 0:
        raise ValueError(f"it has {len(columns.hosts)} hosts of {columns.ranks} ranks")
    ranks_per_node = columns.ranks // len(columns.hosts)
    pids = _unpack_column(columns, "pids")
    processor_times = _unpack_column(columns, "processor_milliseconds")
    processor_waits = _unpack_column(columns, "processor_wait_milliseconds")
    listed_by_number = {rank.rank: rank for rank in listed}
    ranks: list[Rank] = []
    for number in range(columns.ranks):
        rank = listed_by_number.get(number)
        if rank is None:
            node, local_rank = divmod(number, ranks_per_node)
            rank = Rank(
                rank=number,
                node=node,
                local_rank=local_rank,
                pid=pids[number],
                host=columns.hosts[node],
                steps=columns.steps,
                processor_seconds=_to_seconds(processor_times[number]),
                processor_wait_seconds=_to_seconds(processor_waits[number]),
                exit=columns.exit,
            )
        ranks.append(rank)
    # A rank that is listed twice, or beyond the number of ranks, is kept for the verifier to report.
    for rank in listed:
        if rank.rank >= columns.ranks or listed_by_number[rank.rank] is not rank:
            ranks.append(rank)
    return tuple(ranks)


def _unpack_column(columns: RankColumns, name: str) -> Sequence[int | None]:
    """Return the numbers of a column by rank; None for each rank if the record does not have the column."""
    from flagbench_core.evidence.columns import unpack  # few records need it, and its import takes 14 ms

    packed: Packed | None = getattr(columns, name)
    if packed is None:
        return (None,) * columns.ranks
    return unpack(asdict(packed), columns.ranks, name)


def _to_seconds(milliseconds: int | None) -> float | None:
    if milliseconds is None:
        return None
    return milliseconds / 1000


def date_fault(created_at: str) -> str | None:
    """Return why no record can have been made at a time like 2026-01-31T12:00:00Z; None if one can.

    The pattern of the field also matches the 31st of February, which is not a date.
    """
    try:
        created = parse_utc(created_at)
    except ValueError:
        return f"{created_at!r} is not a date"
    if created.year not in YEARS:
        return f"{created_at} is not between {YEARS[0]} and {YEARS[-1]}, which the clock of a machine shows"
    return None


def _strict_json(content: bytes) -> Any:
    """Parse JSON. Raises ValueError or RecursionError for what `parse` does not allow."""
    if len(content) > MAX_RECORD_BYTES:
        raise ValueError(f"it has {len(content):,} bytes, more than the {MAX_RECORD_BYTES:,} allowed")
    if not content.strip():
        raise ValueError("it is empty")
    values = content.count(b",") + content.count(b"[") + content.count(b"{")
    if values > MAX_VALUES:
        raise ValueError(f"it holds more than {MAX_VALUES:,} values")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text: byte {error.start} is 0x{content[error.start]:02x}") from None
    raw = json.loads(
        text,
        parse_constant=_parse_number,
        parse_float=_parse_number,
        parse_int=_parse_integer,
        object_pairs_hook=_object_of_pairs,
    )
    _check_depth(raw)
    if "\\u" in text:
        # Half of a surrogate pair can only be written as an escape, since UTF-8 does not have it. Encoding raises.
        json.dumps(raw, ensure_ascii=False).encode("utf-8")
    return raw


def _check_depth(value: Any, levels: int = MAX_DEPTH) -> None:
    """Raise RecursionError if objects and arrays are nested deeper than `levels`."""
    if not isinstance(value, _NESTED):
        return
    if not levels:
        raise RecursionError
    parts: Iterable[Any] = value
    if isinstance(value, dict):
        parts = value.values()
    if _NESTED_TYPES.isdisjoint(map(type, parts)):  # faster for long lists of numbers, which are most of a record
        return
    for inner in parts:
        if isinstance(inner, _NESTED):
            _check_depth(inner, levels - 1)


def _parse_number(text: str) -> float:
    """Parse a number, NaN or Infinity. Raises ValueError for all that are not numbers up to LARGEST."""
    number = float(text)
    if not abs(number) <= LARGEST:  # NaN is not, either
        raise ValueError(f"{brief(text, 40)} is not a number up to {LARGEST:g}")
    return number


def _parse_integer(text: str) -> int:
    """Parse an integer. Raises ValueError for one beyond LARGEST.

    JSON's integers have no limit, but Python cannot divide those that are not in the range of a float.
    """
    if len(text) > DIGITS:
        _parse_number(text)
    return int(text)


def _object_of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of an object. Raises ValueError if one is given more than once."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        duplicate, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the field '{brief(duplicate)}' is given more than once")
    return fields
