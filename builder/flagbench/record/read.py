"""A record read strictly: JSON without NaN, its version first, then its schema, then typed data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.record.model import Check, Metric, Record, Status
from flagbench.schema import field_name, violations
from flagbench.terminal import visible

VERSION = "record/v1"
SHOWN = 5
"""Violations an error message lists."""


class RecordError(FlagbenchError):
    """A record that cannot be read or is not one."""

    def __init__(self, message: str, *, remedy: str, code: ExitCode = ExitCode.DATA) -> None:
        super().__init__(visible(message), remedy=remedy, code=code)


def read_record(source: Path | bytes) -> Record:
    """The record in a file or in bytes. Raises RecordError (exit code 3) saying what is wrong with it."""
    if isinstance(source, bytes):
        return _typed(_parsed(source, "the record"))
    try:
        text = source.read_bytes()
    except OSError as error:
        raise RecordError(
            f"the record {source} cannot be read: {error.strerror}",
            remedy="check the path; `flagbench results ls` shows the stored records",
        ) from error
    return _typed(_parsed(text, str(source)))


def _parsed(text: bytes, name: str) -> dict[str, Any]:
    try:
        raw: Any = json.loads(
            text.decode("utf-8"),
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_integer,
            object_pairs_hook=_unique_keys,
        )
    except (ValueError, RecursionError) as error:
        raise RecordError(
            f"{name} is not valid JSON: {error}",
            remedy="give the record as it was printed: stdout of a run, without its stderr",
        ) from error
    version = raw.get("schema") if isinstance(raw, dict) else None
    if not (isinstance(raw, dict) and isinstance(version, str) and version.startswith("record/")):
        raise RecordError(
            f"{name} is JSON, but no flagbench record: it has no schema field like '{VERSION}'",
            remedy="give a record: what a run printed on stdout",
        )
    if version != VERSION:
        raise RecordError(
            f"this record is {version}; this flagbench reads {VERSION}",
            remedy="upgrade flagbench",
        )
    _check_schema(raw, name)
    return raw


def _check_schema(raw: dict[str, Any], name: str) -> None:
    faults = [f"{field_name(v.path)}: {v.message}" for v in violations("record", raw)]
    try:
        # The schema's pattern also fits the 31st of February, which would be nobody's folder in a store.
        datetime.strptime(str(raw.get("created_at")), "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        if not any(fault.startswith("created_at:") for fault in faults):
            faults.append(f"created_at: {raw['created_at']!r} is no date")
    if faults:
        more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        raise RecordError(
            f"{name} is no valid {VERSION}: {'; '.join(faults[:SHOWN])}{more}",
            remedy="give the record as the run printed it; if it was not edited, report this",
        )


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


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large for a number")
    return value


def _integer(text: str) -> int:
    # JSON's integers have no limit, and every number of a record may be divided by another.
    _finite(text)
    return int(text)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field '{twice}' is given twice")
    return data
