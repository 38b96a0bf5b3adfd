"""Times a launch with the clock of this host, and writes that time into the run's record.

The image measures its run from inside; the time measured here includes the start of its process or container.
"""

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
    """A run that has ended, with the time at which it started and its duration, by the clock of this host."""

    result: LaunchResult
    started_at: str
    """The second in which it started, UTC, as a record writes a time."""
    seconds: float
    """Seconds from before the process or container was started until it had ended, sleep of the machine included."""
    via: str
    """The launcher, `native` or `docker`."""


def timed_launch(launcher: Launcher, request: RunRequest, via: str) -> TimedLaunch:
    """Run to the end and take the time. Raises FlagbenchError if nothing could be started."""
    started_at = utc_now()
    start = elapsed()
    result = launcher.launch(request)
    return TimedLaunch(result, started_at, round(elapsed() - start, 3), via)


def write_launch(launch: TimedLaunch, request: RunRequest) -> LaunchResult:
    """Add the field `launch` to the record of a run, and to the copy that the image wrote to --out.

    All copies of a record must have the same bytes. So if the copy in --out cannot be replaced, the result is
    returned without the field.
    """
    content = with_launch(launch.result.record, launch)
    if content == launch.result.record:
        return launch.result
    if request.options.out is not None:
        out = Path(request.options.out)
        if not _rewrite_copy(out, launch.result.record, content):
            return launch.result
    return replace(launch.result, record=content)


def with_launch(record: bytes, launch: TimedLaunch) -> bytes:
    """The JSON of the record with the field `launch`, which replaces one that is there.

    All other bytes stay as they are. Text that is not a JSON object is returned unchanged.
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
        return _to_json(raw) + b"\n"
    # The record is not serialized again, so that numbers keep the digits that the image wrote: the field is inserted
    # before the last brace.
    fields = record.rstrip().removesuffix(b"}")
    return fields + b',"launch":' + _to_json(field) + b"}\n"


def _rewrite_copy(folder: Path, before: bytes, after: bytes) -> bool:
    """Replace the copy of a record in the folder of --out. Returns False if there is a copy that still differs."""
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


def _to_json(value: Any) -> bytes:
    """The value as compact JSON. Surrogates, which stand for bytes of a file name that is not UTF-8, are kept."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")
