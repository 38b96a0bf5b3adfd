"""Prepared folders: the output of `prepare`, opened and verified by every run.

A folder contains its files and `prepared.json`, which lists their sizes and checksums. It is created atomically.
"""

import hashlib
import json
import os
import stat
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from flagbench_cases.prepare.destination import check_target
from flagbench_cases.prepare.writer import Writer, writing
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import INDEX, KINDS, SCHEMA, Reading, check_folder, is_plain, open_file, sum_of

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
MAX_INDEX_BYTES = 64 * 2**20


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
            raise DataError("%s does not contain %s" % (self.folder, name), _prepare_again(self.case, self.kind))
        return os.path.join(self.folder, name)

    @property
    def digest(self) -> str:
        """`sha256:` and the hash of all names and checksums; equal for folders with equal contents."""
        lines = ["%s  %s\n" % (self.files[name]["sha256"], name) for name in sorted(self.files)]
        return "sha256:" + hashlib.sha256("".join(lines).encode("utf-8")).hexdigest()


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
    for key, asked in (("case", case), ("kind", kind)):
        if content[key] != asked:
            raise DataError(
                "%s was prepared as the %s %s, not %s" % (folder, key, _quoted(content[key]), asked),
                "use a folder that was prepared for it, or prepare one",
            )
    if formats is not None and content["format"] not in formats:
        raise DataError(
            "%s has the format %s; this flagbench reads %s"
            % (folder, _quoted(content["format"]), " and ".join(formats)),
            _prepare_again(case, kind),
        )
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


def _prepare_again(case: str, kind: str) -> str:
    return "prepare it again: flagbench prepare %s --%s SOURCE -o OUT --force" % (case, kind)


def _quoted(value: Any) -> str:
    """A value from a file, quoted and shortened for a message."""
    return repr(value)[:80]


def _read_index(folder: str, case: str, kind: str) -> Dict[str, Any]:
    path = os.path.join(folder, INDEX)
    try:
        if os.stat(path).st_size > MAX_INDEX_BYTES:
            raise ValueError("it is too large")
        with open_file(path, encoding="utf-8") as file:
            content = json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(_missing_reason(folder), _prepare_first(case, kind)) from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            "%s cannot be read (%s)" % (path, str(error).split("\n")[0]), _prepare_again(case, kind)
        ) from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise DataError("%s does not have the schema %s" % (path, SCHEMA), _prepare_again(case, kind))
    wrong = _index_error(content)
    if wrong:
        raise DataError("%s is damaged: %s" % (path, wrong), _prepare_again(case, kind))
    return content


def _missing_reason(folder: str) -> str:
    if not folder:
        return "no prepared folder was given"
    if not os.path.lexists(folder):
        return "%s does not exist" % folder
    if not os.path.isdir(folder):
        return "%s is not a folder" % folder
    return "%s has no %s: it is not a prepared folder" % (folder, INDEX)


def _prepare_first(case: str, kind: str) -> str:
    return "prepare one first: flagbench prepare %s --%s SOURCE -o OUT, then use OUT" % (case, kind)


def _index_error(content: Dict[str, Any]) -> Optional[str]:
    """What is wrong with the structure of the index, or None. Names must be plain file names."""
    for key, kind in (("case", str), ("kind", str), ("format", str), ("facts", dict), ("files", dict)):
        if not isinstance(content.get(key), kind):
            return "%s is missing or has the wrong type" % key
    if not isinstance(content.setdefault("sources", []), list):
        return "sources is not a list"
    if content["kind"] not in KINDS:
        return "its kind is neither data nor weights"
    if not content["files"]:
        return "it lists no files"
    for name, facts in content["files"].items():
        if not is_plain(name):
            return "%s is not a plain file name" % _quoted(name)
        size, sha256 = (facts.get("bytes"), facts.get("sha256")) if isinstance(facts, dict) else (None, None)
        if not isinstance(size, int) or isinstance(size, bool) or not isinstance(sha256, str):
            return "%s has no size or no checksum" % _quoted(name)
    return None


def _check_files(made: PreparedFolder, thorough: Optional[bool], report: Any) -> None:
    summed = []
    for name, facts in sorted(made.files.items()):
        path = os.path.join(made.folder, name)
        try:
            found = os.stat(path)
        except OSError as error:
            raise DataError(
                "%s cannot be read (%s)" % (path, error.strerror or error), _prepare_again(made.case, made.kind)
            ) from None
        if not stat.S_ISREG(found.st_mode):
            raise DataError("%s is not a file" % path, _prepare_again(made.case, made.kind))
        if found.st_size != facts["bytes"]:
            raise DataError(
                "%s has %d bytes; it was prepared with %d" % (path, found.st_size, facts["bytes"]),
                _prepare_again(made.case, made.kind),
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
                "%s cannot be read (%s)" % (path, error.strerror or error), _prepare_again(made.case, made.kind)
            ) from None
        if found_sum != made.files[name]["sha256"]:
            raise DataError("%s is damaged: its checksum differs" % path, _prepare_again(made.case, made.kind))
