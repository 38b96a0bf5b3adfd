"""Prepared folders: the output of `prepare`, opened and verified by every run.

A folder contains its files and `prepared.json`, which lists their sizes and checksums. It is created atomically.
"""

import os
import stat
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from flagbench_cases.prepare import index
from flagbench_cases.prepare.destination import check_target
from flagbench_cases.prepare.writer import Writer, writing
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import INDEX, KINDS, Reading, check_folder, open_file, sum_of

__all__ = [
    "KINDS",
    "PreparedFolder",
    "Writer",
    "check_folder",
    "check_target",
    "is_prepared",
    "kind_of",
    "locate",
    "open_folder",
    "writing",
]

MAX_CHECKSUM_BYTES_IN_A_RUN = 2 * 2**30
"""Bytes. Checksums of larger files are verified only by `prepare --check`, so that runs start quickly."""


class PreparedFolder(NamedTuple):
    """An opened folder: its facts, and its files as listed in `prepared.json` ({"bytes": ..., "sha256": ...})."""

    folder: str
    case: str
    kind: str
    format: str
    facts: Dict[str, Any]
    files: Dict[str, Dict[str, Any]]
    sources: List[Dict[str, Any]]
    licence: Optional[str]

    def path(self, name: str) -> str:
        """The path of a file. Raises DataError if the folder does not have it."""
        if name not in self.files:
            raise DataError("%s does not contain %s" % (self.folder, name), index.prepare_again(self.case, self.kind))
        return os.path.join(self.folder, name)

    @property
    def digest(self) -> str:
        """`sha256:` and the hash of all names and checksums; equal for folders with equal contents."""
        return index.digest_of(self.files)


def locate(folder: str, kind: str) -> str:
    """The folder of a kind below the output folder of `prepare`, else the folder itself."""
    inner = os.path.join(folder, kind)
    return inner if folder and os.path.isfile(os.path.join(inner, INDEX)) else folder


def is_prepared(folder: str) -> bool:
    """Whether a folder has a `prepared.json`, which is not checked."""
    return os.path.isfile(os.path.join(folder, INDEX))


def kind_of(folder: str) -> str:
    """The kind of a prepared folder according to its index. Raises DataError."""
    return str(_read_index(folder, "CASE", "KIND")["kind"])


def open_folder(
    folder: str,
    case: str,
    kind: str,
    formats: Optional[Sequence[str]] = None,
    thorough: Optional[bool] = None,
    report: Any = None,
) -> PreparedFolder:
    """Open a prepared folder, or the one of this kind below it, and verify it.

    Args:
        formats: formats that the caller can read; None accepts any.
        thorough: False compares only sizes, None also checksums of files up to 2 GiB, True all checksums.
        report: called with ("check", bytes read, bytes to read) while checksums are computed.

    Raises:
        DataError: the folder is missing, damaged, or of another case, kind or format.
    """
    folder = locate(folder, kind)
    content = _read_index(folder, case, kind)
    index.check_use(content, folder, case, kind, formats)
    made = PreparedFolder(
        folder,
        case,
        kind,
        content["format"],
        content["facts"],
        content["files"],
        content["sources"],
        content.get("licence"),
    )
    _check_files(made, thorough, report)
    return made


def _read_index(folder: str, case: str, kind: str) -> Dict[str, Any]:
    path = os.path.join(folder, INDEX)
    try:
        with open_file(path, "rb") as file:
            content = file.read(index.MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(_missing_reason(folder), index.prepare_first(case, kind)) from None
    except (OSError, ValueError) as error:
        raise index.unreadable(path, error, case, kind) from None
    return index.parse(content, path, case, kind)


def _missing_reason(folder: str) -> str:
    if not folder:
        return "no prepared folder was given"
    if not os.path.lexists(folder):
        return "%s does not exist" % folder
    if not os.path.isdir(folder):
        return "%s is not a folder" % folder
    return "%s has no %s: it is not a prepared folder" % (folder, INDEX)


def _check_files(made: PreparedFolder, thorough: Optional[bool], report: Any) -> None:
    summed = []
    for name, facts in sorted(made.files.items()):
        path = os.path.join(made.folder, name)
        try:
            found = os.stat(path)
        except OSError as error:
            raise DataError(
                "%s cannot be read (%s)" % (path, error.strerror or error), index.prepare_again(made.case, made.kind)
            ) from None
        if not stat.S_ISREG(found.st_mode):
            raise DataError("%s is not a file" % path, index.prepare_again(made.case, made.kind))
        if found.st_size != facts["bytes"]:
            raise DataError(
                "%s has %d bytes; it was prepared with %d" % (path, found.st_size, facts["bytes"]),
                index.prepare_again(made.case, made.kind),
            )
        if thorough or (thorough is None and found.st_size <= MAX_CHECKSUM_BYTES_IN_A_RUN):
            summed.append(name)
    meter = Reading("check", sum(made.files[name]["bytes"] for name in summed), report)
    for name in summed:
        path = os.path.join(made.folder, name)
        try:
            found_sum = sum_of(path, meter)
        except OSError as error:
            raise DataError(
                "%s cannot be read (%s)" % (path, error.strerror or error), index.prepare_again(made.case, made.kind)
            ) from None
        if found_sum != made.files[name]["sha256"]:
            raise DataError("%s is damaged: its checksum differs" % path, index.prepare_again(made.case, made.kind))
