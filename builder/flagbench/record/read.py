"""A record read strictly: JSON without NaN, its version first, then its schema, then typed data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NoReturn

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.files import read_input, read_stdin, reason
from flagbench.record.model import Check, Metric, Record, Status
from flagbench.schema import field_name, violations
from flagbench.terminal import brief, visible

VERSION = "record/v1"
SHOWN = 5
"""Violations an error message lists."""

MAX_BYTES = 16 * 2**20
"""Bytes. A record is under 1 MB; a larger file than this is refused without reading it."""
MAX_VALUES = 300_000
"""Commas and opening brackets in a record: their number bounds the memory and time that parsing takes."""
MAX_DEPTH = 64
"""Levels of nested objects and arrays."""
LARGEST = 1e150
"""The largest magnitude of a number: sums, products and squares of such numbers are finite too."""
CLOCK_SKEW = timedelta(hours=1)
"""How far ahead of this machine's clock the date of a record may be."""

_REMEDY = "give the record as it was printed: stdout of a run, without its stderr"


class RecordError(FlagbenchError):
    """A record that cannot be read or is not one."""

    def __init__(self, message: str, *, remedy: str, code: ExitCode = ExitCode.DATA) -> None:
        super().__init__(visible(message), remedy=remedy, code=code)


def read_record(source: Path | bytes, name: str = "the record") -> Record:
    """The record in a file or in bytes, which `name` calls in errors.

    Raises RecordError (exit code 3), which says what is wrong with it.
    """
    if isinstance(source, bytes):
        return _typed(_checked(source, name))
    try:
        content = read_input(source, MAX_BYTES)
    except OSError as error:
        raise RecordError(
            f"the record {brief(str(source))} cannot be read: {reason(error)}",
            remedy="name a file; `flagbench results ls` shows the stored records",
        ) from error
    return _typed(_checked(content, brief(str(source))))


def read_standard_input() -> Record:
    """The record on standard input. Raises RecordError as `read_record` does."""
    try:
        content = read_stdin(MAX_BYTES)
    except OSError as error:
        raise RecordError(f"standard input cannot be read: {reason(error)}", remedy=_REMEDY) from error
    return read_record(content, "standard input")


def parse(content: bytes, name: str) -> dict[str, Any]:
    """The JSON object in `content`, read strictly and not held against the schema; `name` calls it in errors.

    Strictly: UTF-8, no field twice, no half characters, no NaN, no number beyond LARGEST, no more than MAX_BYTES,
    MAX_VALUES and MAX_DEPTH. Raises RecordError for anything else, and for JSON that says it is no `record/v1`.
    """
    try:
        raw = _strict_json(content)
    except (ValueError, RecursionError) as error:
        why = f"it is nested deeper than {MAX_DEPTH} levels" if isinstance(error, RecursionError) else error
        raise RecordError(f"{name} is not valid JSON: {why}", remedy=_REMEDY) from error
    version = raw.get("schema") if isinstance(raw, dict) else None
    if not (isinstance(raw, dict) and isinstance(version, str) and version.startswith("record/")):
        raise RecordError(
            f"{name} is JSON, but no flagbench record: it has no schema field like '{VERSION}'",
            remedy="give a record: what a run printed on stdout",
        )
    if version != VERSION:
        raise RecordError(
            f"this record is {brief(version)}; this flagbench reads {VERSION}", remedy="upgrade flagbench"
        )
    return raw


def _checked(content: bytes, name: str) -> dict[str, Any]:
    raw = parse(content, name)
    faults = [f"{field_name(v.path)}: {v.message}" for v in violations("record", raw)]
    if not any(fault.startswith("created_at:") for fault in faults) and (fault := date_fault(raw["created_at"])):
        faults.append(f"created_at: {fault}")
    if faults:
        more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        raise RecordError(
            f"{name} is not a valid {VERSION}: {'; '.join(map(brief, faults[:SHOWN]))}{more}",
            remedy="give the record as the run printed it; if it was not edited, report this",
        )
    return raw


def date_fault(created_at: str) -> str | None:
    """Why a time like 2026-01-31T12:00:00Z cannot be when a record was made, or None."""
    # The schema's pattern also matches the 31st of February, which no folder of a store can have.
    try:
        created = datetime.strptime(created_at, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    except ValueError:
        return f"{created_at!r} is not a date"
    now = datetime.now(timezone.utc)
    if created > now + CLOCK_SKEW:
        return f"{created_at} is in the future: by this machine's clock it is {now:%Y-%m-%dT%H:%M:%SZ}"
    return None


def _typed(raw: Mapping[str, Any]) -> Record:
    status = raw["status"]
    quality = raw["quality"] or {}
    return Record(
        record_id=raw["record_id"],
        run_id=raw["run_id"],
        created_at=raw["created_at"],
        case=raw["case"],
        stack=raw["stack"],
        preset=raw["preset"],
        division=raw["division"],
        config_digest=raw["config_digest"],
        conditions=raw["conditions"],
        metrics=tuple(_metric(metric) for metric in raw["metrics"]),
        checks=tuple(Check(c["name"], c["ok"], c["detail"]) for c in quality.get("checks", ())),
        status=Status(
            state=status["state"],
            phase=status["phase"],
            reason=status["reason"],
            remedy=status.get("remedy"),
            exit_code=status["exit_code"],
        ),
        raw=raw,
    )


def _metric(raw: Mapping[str, Any]) -> Metric:
    interval = raw.get("ci95")
    return Metric(
        name=raw["name"],
        value=raw["value"],
        unit=raw["unit"],
        scope=raw["scope"],
        n=raw.get("n"),
        stdev=raw.get("stdev"),
        ci95=(interval[0], interval[1]) if interval is not None else None,
        ci_method=raw.get("ci_method"),
        note=raw.get("note"),
    )


def _strict_json(content: bytes) -> Any:
    """What `content` holds as JSON. Raises ValueError or RecursionError for what `parse` does not allow."""
    if len(content) > MAX_BYTES:
        raise ValueError(f"it has {len(content):,} bytes, more than the {MAX_BYTES:,} allowed")
    if not content.strip():
        raise ValueError("it is empty")
    if sum(map(content.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise ValueError(f"it holds more than {MAX_VALUES:,} values")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text: byte {error.start} is 0x{content[error.start]:02x}") from None
    raw = json.loads(
        text,
        parse_constant=_refuse_constant,
        parse_float=_bounded,
        parse_int=_integer,
        object_pairs_hook=_unique_keys,
    )
    # A lone surrogate can only be written as an escape: the decoder refuses its bytes.
    _check_values(raw, texts="\\u" in text)
    return raw


def _check_values(raw: Any, *, texts: bool) -> None:
    """Refuse what is nested too deeply and, if `texts`, strings with a lone surrogate."""
    level: list[Any] = [raw]
    depth = 0
    while level:
        if depth > MAX_DEPTH:
            raise RecursionError
        depth += 1
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += value.values()
                if texts:
                    inner += value
            elif isinstance(value, list):
                inner += value
            elif texts and isinstance(value, str):
                _check_text(value)
        level = inner


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"a string contains a lone surrogate, \\u{ord(text[error.start]):04x}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _bounded(text: str) -> float:
    value = float(text)
    if not abs(value) <= LARGEST:
        raise ValueError(f"{brief(text, 40)} is too large for a number")
    return value


def _integer(text: str) -> int:
    # JSON's integers have no limit, and every number of a record may be divided by another.
    _bounded(text)
    return int(text)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the field '{brief(twice)}' is given twice")
    return data
