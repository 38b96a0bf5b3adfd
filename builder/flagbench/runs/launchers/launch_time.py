"""A launch timed by the clock of this host, and that time written into the run's record."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flagbench.records.read import MAX_RECORD_BYTES
from flagbench.records.store_keys import is_record_id
from flagbench.runs.launchers import Launcher, LaunchResult
from flagbench.runs.request import RunRequest
from flagbench.system.clock import elapsed, utc_now
from flagbench.system.files import read_file, write_atomically


@dataclass(frozen=True)
class TimedLaunch:
    """A run that has ended, with when it started and how long it took by this host's clock."""

    result: LaunchResult
    started_at: str
    """UTC, as a record writes a time; the second in which it started."""
    seconds: float
    """From before the process or the container was started until it had ended, sleep of the machine included."""
    via: str
    """The launcher, `native` or `docker`."""


def timed_launch(launcher: Launcher, request: RunRequest, via: str) -> TimedLaunch:
    """Run to the end. Raises FlagbenchError if nothing could be started."""
    started_at, start = utc_now(), elapsed()
    result = launcher.launch(request)
    return TimedLaunch(result, started_at, round(elapsed() - start, 3), via)


def stamped(launch: TimedLaunch, request: RunRequest) -> LaunchResult:
    """The result with the field `launch` in its record, and in the copy that the image wrote to --out.

    All copies of a record have the same bytes. So the field is left out where the folder of --out is no longer
    writable.
    """
    content = with_launch(launch.result.record, launch)
    if content == launch.result.record:
        return launch.result
    if request.options.out is not None and not _rewritten(Path(request.options.out), launch.result.record, content):
        return launch.result
    return replace(launch.result, record=content)


def with_launch(record: bytes, launch: TimedLaunch) -> bytes:
    """The record with its field `launch`, which replaces one that was there; other bytes stay as they were.

    What is not a JSON object is returned unchanged.
    """
    try:
        raw = json.loads(record)
    except (ValueError, RecursionError):
        return record
    if not isinstance(raw, dict) or not raw:
        return record
    field = {"started_at": launch.started_at, "seconds": launch.seconds, "via": launch.via}
    if "launch" in raw:
        raw["launch"] = field
        return _line(raw)
    # The rest is not serialized again, so numbers keep the digits that the image wrote.
    return record.rstrip()[:-1] + b',"launch":' + _line(field)[:-1] + b"}\n"


def _rewritten(folder: Path, before: bytes, after: bytes) -> bool:
    """Whether the copy of a record in a folder of --out holds `after` now, or none is there."""
    record_id = ""
    with suppress(ValueError, RecursionError, TypeError, KeyError):
        record_id = str(json.loads(before)["record_id"])
    file = folder / f"{record_id}.json"
    try:
        if not is_record_id(record_id) or not file.exists():
            return True
        if read_file(file, MAX_RECORD_BYTES).strip() != before.strip():
            return False
        write_atomically(file, after)
    except OSError:
        return False
    return True


def _line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass") + b"\n"
