"""A record read strictly: JSON without NaN or duplicate fields, its version first, then its types and limits.

The standard library parses: msgspec's own decoder takes the last of duplicate fields, and numbers of any size.
msgspec then checks and converts (`model`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec
from msgspec.structs import asdict

from flagbench.console.terminal import brief, visible
from flagbench.errors import FlagbenchError
from flagbench.records.evidence import Packed
from flagbench.records.model import Rank, RankColumns, Record
from flagbench.system.files import read_input, read_stdin, reason
from flagbench_core.exit_codes import ExitCode

RECORD_VERSION = Record.VERSION

MAX_RECORD_BYTES = 1_000_000
"""Bytes. A run keeps its record below; a larger file is refused without reading it."""
MAX_VALUES = 300_000
"""Commas and opening brackets in a record: their number bounds the memory and time that parsing takes."""
MAX_DEPTH = 64
"""Levels of nested objects and arrays."""
LARGEST = 1e150
"""The largest magnitude of a number: sums, products and squares of such numbers are finite too."""
DIGITS = 150
"""An integer of no more digits is not beyond LARGEST; most of a record's many numbers have few."""
YEARS = range(1970, 2200)
"""The years that the clock of a machine, even an unset one, shows."""

_ONE_AT_A_TIME = Lock()
"""msgspec 0.22 builds its description of a type at its first use; a thread that finds half of it crashes."""
_NESTED = (dict, list)
_PARSED = frozenset(_NESTED)
_REMEDY = "give the record as it was printed: stdout of a run, without its stderr"


class RecordError(FlagbenchError):
    """A record that cannot be read or is not one."""

    def __init__(self, message: str, *, remedy: str = _REMEDY) -> None:
        super().__init__(visible(message), remedy=remedy, code=ExitCode.DATA)


def read_record(source: Path | bytes | None, name: str = "the record") -> Record:
    """Read a record from a file, from standard input (None), or from bytes, which errors call `name`.

    Raises RecordError (exit code 3), which says what is wrong with it.
    """
    if not isinstance(source, bytes):
        source, name = read_content(source)
    raw = parse(source, name)
    try:
        return _to_record(raw)
    except msgspec.ValidationError as error:
        fault = _validation_fault(error)
    except ValueError as error:
        fault = str(error)
    remedy = "give the record as the run printed it; if it was not edited, report this"
    raise RecordError(f"{name} is not a valid {RECORD_VERSION}: {fault}", remedy=remedy)


def _to_record(raw: dict[str, Any]) -> Record:
    """A parsed document as a record. Raises ValueError, with the field's path first, for one that is not valid."""
    with _ONE_AT_A_TIME:
        # `raw` last: a field of that name in the document is ignored.
        record = msgspec.convert({**raw, "raw": raw}, Record)
    fault = date_fault(record.created_at)
    if record.rank_columns is not None:
        try:
            ranks = _all_ranks(record.rank_columns, record.ranks)
        except ValueError as error:
            raise ValueError(f"rank_columns: {error}") from error
        record = msgspec.structs.replace(record, ranks=ranks)
    if fault is not None:
        raise ValueError(f"created_at: {fault}")
    return record


def _validation_fault(error: msgspec.ValidationError) -> str:
    """The message of an error of msgspec, which ends with the field's path, as in " - at `$.status.phase`"."""
    message, _, location = str(error).partition(" - at `$")
    path = location.removeprefix(".").removesuffix("`")
    if not path:
        return brief(message)
    return f"{brief(path)}: {brief(message)}"


def read_content(file: Path | None) -> tuple[bytes, str]:
    """The bytes of a file or of standard input (None), and what errors call it. Raises RecordError."""
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
    """Parse a JSON object without validating its fields; `name` is what errors call it.

    It must be UTF-8 without duplicate fields, lone surrogates, NaN or numbers beyond LARGEST, and keep to
    MAX_RECORD_BYTES, MAX_VALUES and MAX_DEPTH. Raises RecordError for anything else, and for JSON that is not a
    `record/v1`.
    """
    if content.startswith(b"\x1f\x8b"):
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


def _all_ranks(columns: RankColumns, listed: Sequence[Rank]) -> tuple[Rank, ...]:
    """Every rank: as it is listed, else from the columns. Raises ValueError for columns of another length."""
    size, rest = divmod(columns.ranks, len(columns.hosts) or 1)
    if rest or not columns.hosts:
        raise ValueError(f"it has {len(columns.hosts)} hosts of {columns.ranks} ranks")
    pids = _column(columns, "pids")
    ran = _column(columns, "processor_milliseconds")
    waited = _column(columns, "processor_wait_milliseconds")
    by_number = {rank.rank: rank for rank in listed}
    ranks: list[Rank] = []
    for number in range(columns.ranks):
        rank = by_number.get(number)
        if rank is None:
            rank = Rank(
                rank=number,
                node=number // size,
                local_rank=number % size,
                pid=pids[number],
                host=columns.hosts[number // size],
                steps=columns.steps,
                processor_seconds=_seconds(ran[number]),
                processor_wait_seconds=_seconds(waited[number]),
                exit=columns.exit,
            )
        ranks.append(rank)
    # A rank that is listed twice, or beyond the number of ranks, is kept for the verifier to report.
    for rank in listed:
        if rank.rank >= columns.ranks or by_number[rank.rank] is not rank:
            ranks.append(rank)
    return tuple(ranks)


def _column(columns: RankColumns, name: str) -> Sequence[int | None]:
    from flagbench_core.evidence.columns import unpack  # few records need it, and it takes 14 ms

    packed: Packed | None = getattr(columns, name)
    if packed is None:
        return (None,) * columns.ranks
    return unpack(asdict(packed), columns.ranks, name)


def _seconds(milliseconds: int | None) -> float | None:
    if milliseconds is None:
        return None
    return milliseconds / 1000


def date_fault(created_at: str) -> str | None:
    """Why a time like 2026-01-31T12:00:00Z cannot be when a record was made, or None."""
    # The pattern of the field also matches the 31st of February, which no folder of a store can have.
    try:
        created = datetime.strptime(created_at, "%Y-%m-%dT%H:%M:%SZ")
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
    if content.count(b",") + content.count(b"[") + content.count(b"{") > MAX_VALUES:
        raise ValueError(f"it holds more than {MAX_VALUES:,} values")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text: byte {error.start} is 0x{content[error.start]:02x}") from None
    raw = json.loads(
        text, parse_constant=_number, parse_float=_number, parse_int=_integer, object_pairs_hook=_unique_keys
    )
    _check_depth(raw)
    if "\\u" in text:  # a lone surrogate can only be written as an escape: the decoder refuses its bytes
        json.dumps(raw, ensure_ascii=False).encode("utf-8")
    return raw


def _check_depth(value: Any, levels: int = MAX_DEPTH) -> None:
    """Raises RecursionError if objects and arrays are nested deeper than `levels`."""
    if not isinstance(value, _NESTED):
        return
    if not levels:
        raise RecursionError
    parts = value.values() if isinstance(value, dict) else value
    if _PARSED.isdisjoint(map(type, parts)):  # the fast way out for long lists of numbers
        return
    for inner in parts:
        if isinstance(inner, _NESTED):
            _check_depth(inner, levels - 1)


def _number(text: str) -> float:
    number = float(text)
    if not abs(number) <= LARGEST:  # true of NaN, too
        raise ValueError(f"{brief(text, 40)} is not a number up to {LARGEST:g}")
    return number


def _integer(text: str) -> int:
    # JSON's integers have no limit, and every number of a record may be divided by another.
    if len(text) > DIGITS:
        _number(text)
    return int(text)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        duplicate, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the field '{brief(duplicate)}' is given more than once")
    return fields
