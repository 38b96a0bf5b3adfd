"""Where a folder store keeps its records, what is found there, and whether a file is the record its path names.

results/v1/case=CASE/stack=STACK/YYYY-MM-DD/RECORD_ID.json
results/v1/case=CASE/stack=STACK/YYYY-MM-DD/RECORD_ID.json.sha256     as `sha256sum -c` reads it
"""

from __future__ import annotations

import hashlib
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flagbench.errors import ExitCode
from flagbench.files import read_file, reason
from flagbench.record.read import MAX_BYTES, RecordError, date_fault, parse
from flagbench.stores.base import RECORD_ID, StoredRecord, StoreError
from flagbench.terminal import brief

LAYOUT = Path("results", "v1")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_CHECKSUM_BYTES = 1024


@dataclass(frozen=True)
class Day:
    """The folder of one day of a case and a stack; `problem`: why no record can belong there, or None."""

    path: Path
    problem: str | None = None

    @property
    def case(self) -> str:
        """The case named by the path."""
        return _part(self.path, "case=")

    @property
    def stack(self) -> str:
        """The stack named by the path."""
        return _part(self.path, "stack=")

    def entry(self, record_id: str, path: Path, problem: str | None, created_at: str | None = None) -> StoredRecord:
        """The listing of a file in this folder, or of the folder itself."""
        start = "" if _day_problem(self.path.name) else f"{self.path.name}T00:00:00Z"
        return StoredRecord(record_id, self.case, self.stack, created_at or start, str(path), problem)


def record_path(root: Path, record_id: str, case: str, stack: str, created_at: str) -> Path:
    """Where a record belongs."""
    return root / LAYOUT / f"case={case}" / f"stack={stack}" / created_at[:10] / f"{record_id}.json"


def checksum_path(path: Path) -> Path:
    """The checksum beside a record."""
    return path.with_name(f"{path.name}.sha256")


def checksum_line(content: bytes, name: str) -> bytes:
    """The content of that file."""
    return f"{hashlib.sha256(content).hexdigest()}  {name}\n".encode()


def days(root: Path, case: str | None = None, stack: str | None = None) -> list[Day]:
    """The day folders of a case and a stack, or of all: the newest first, names that are not dates last.

    A folder between the root and the days that cannot be read is listed among the last, with its problem.
    """
    found: list[Day] = []
    level = [root / LAYOUT]
    for prefix, value in (("case=", case), ("stack=", stack), ("", None)):
        folders, level = level, []
        for folder in folders:
            try:
                names = [path.name for path in folder.iterdir() if path.name.startswith(prefix)]
            except FileNotFoundError:
                continue  # nothing was stored yet
            except OSError as error:
                found.append(Day(folder, f"the folder cannot be read: {reason(error)}"))
                continue
            paths = [folder / name for name in sorted(names) if value in (None, name[len(prefix) :])]
            level += [path for path in paths if _is_folder(path)]
    found += [Day(path, _day_problem(path.name)) for path in level]
    good = sorted((day for day in found if day.problem is None), key=lambda day: day.path.name, reverse=True)
    return good + [day for day in found if day.problem is not None]


def records_of(day: Day) -> Iterator[StoredRecord]:
    """Everything in a day's folder that is named like a record; what the store never put there has a `problem`."""
    try:
        names = record_names(day)
    except OSError as error:
        why = day.problem or f"the folder cannot be read: {reason(error)}"
        yield day.entry(day.path.name, day.path, why)
        return
    for name in names:
        path = day.path / f"{name}.json"
        problem = day.problem or file_problem(path)
        yield day.entry(name, path, problem, None if problem else _created_at(path))


def record_names(day: Day) -> list[str]:
    """The record ids that a day's files are named after. Raises OSError if the folder cannot be read."""
    return sorted(path.name.removesuffix(".json") for path in day.path.iterdir() if path.name.endswith(".json"))


def unfinished_records(day: Day) -> int:
    """How many checksums have no record beside them, left by an interrupted put."""
    try:
        names = {path.name for path in day.path.iterdir()}
    except OSError:
        return 0
    return sum(name.endswith(".json.sha256") and name.removesuffix(".sha256") not in names for name in names)


def load(path: Path) -> bytes:
    """The bytes of a stored record, checked against its checksum and its path.

    Raises StoreError (DATA) if it cannot be read, has changed, or its id, case, stack or day differs from the path.
    """
    try:
        content = read_file(path, MAX_BYTES)
        expected = read_file(checksum_path(path), _CHECKSUM_BYTES)
    except FileNotFoundError as error:
        raise damaged(path, "has no checksum beside it") from error
    except OSError as error:
        raise damaged(path, f"cannot be read: {reason(error)}") from error
    if expected != checksum_line(content, path.name):
        raise damaged(path, "does not match its checksum: it changed after it was stored")
    _check_place(path, parse(content, f"the stored record {path}"))
    return content


def damaged(path: Path, what: str) -> StoreError:
    """The error for a file in the store that is missing a part or has changed since it was put there."""
    return StoreError(
        f"the stored record {path} {what}",
        remedy="restore the file from a copy, or store the record again from the run's --out folder",
        code=ExitCode.DATA,
    )


def _check_place(path: Path, raw: Mapping[str, Any]) -> None:
    day = Day(path.parent)
    place = {"record_id": path.name.removesuffix(".json"), "case": day.case, "stack": day.stack}
    for field, expected in place.items():
        if raw.get(field) != expected:
            raise damaged(path, f"is not the record named by its path: its {field} is {brief(str(raw.get(field)))}")
    if str(raw.get("created_at"))[:10] != path.parent.name:
        raise damaged(path, f"is stored under the wrong day: its created_at is {brief(str(raw.get('created_at')))}")
    if problem := _day_problem(path.parent.name):
        raise damaged(path, f"is not stored under a day: {problem}")


def _part(path: Path, prefix: str) -> str:
    """The case or the stack in a path."""
    return next((part.removeprefix(prefix) for part in reversed(path.parts) if part.startswith(prefix)), "-")


def _day_problem(name: str) -> str | None:
    if not _DAY.fullmatch(name):
        return f"its folder {name!r} is not a date"
    return date_fault(f"{name}T00:00:00Z")


def file_problem(path: Path) -> str | None:
    """Why a file cannot have been put here by the store, or None."""
    if not RECORD_ID.fullmatch(path.name.removesuffix(".json")):
        return "its name is not a record id"
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return "it is not a file"
        checksum_path(path).stat()
    except FileNotFoundError:
        return "it has no checksum beside it" if path.exists() else "it is a dangling link"
    except OSError as error:
        return f"it cannot be read: {reason(error)}"
    return None


def _created_at(path: Path) -> str | None:
    """When a record says it was made, if that is on the day of its folder; None for a damaged one."""
    try:
        raw = parse(read_file(path, MAX_BYTES), path.name)
    except (OSError, RecordError):
        return None
    created_at = str(raw.get("created_at"))
    return created_at if created_at.startswith(path.parent.name) and date_fault(created_at) is None else None


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a link to a folder without permission
        return False
