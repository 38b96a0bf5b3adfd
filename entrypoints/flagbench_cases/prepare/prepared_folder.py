"""Opens and verifies prepared folders, which `prepare` writes and every run reads.

A folder contains files and the index `prepared.json`: its case, its kind (`data` or `weights`) and format, and the
size and sha256 of every file. writer.py creates it atomically. A folder may come from anywhere, so its index is
checked before anything in it is used.
"""

from __future__ import annotations

import enum
import hashlib
import json
import os
import re
import stat
from typing import Any, Mapping, NamedTuple, Sequence

from flagbench_cases.prepare.writer import Writer, writing
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import KINDS, SCHEMA, Reading, Report, is_plain, open_file, sum_of
from flagbench_core.data_folders import INDEX, locate

__all__ = ["PreparedFolder", "Verification", "Writer", "open_folder", "writing"]

_MAX_INDEX_BYTES = 64 * 2**20
"""The size from which an index is refused, so that a wrong file is not read into memory."""
MAX_CHECKSUM_BYTES_IN_A_RUN = 2 * 2**30
"""Checksums of larger files, in bytes, are verified only by `prepare --check`, so that runs start quickly."""
_SHA256 = re.compile("[0-9a-f]{64}")
_MAX_NAME_LENGTH = 80
"""Most characters of a value from an index that an error shows."""


class Verification(enum.Enum):
    """How the files of a folder are compared with its index."""

    SIZES = "sizes"
    """Only sizes are compared."""
    SMALL_FILES = "small files"
    """Sizes are compared, and the checksums of files up to MAX_CHECKSUM_BYTES_IN_A_RUN."""
    CHECKSUMS = "checksums"
    """Sizes and all checksums are compared."""


class PreparedFolder(NamedTuple):
    """An opened folder."""

    folder: str
    """Its path."""
    case: str
    kind: str
    """`data` or `weights`."""
    format: str
    """NAME/vNUMBER."""
    facts: dict[str, Any]
    """Facts that the case's `prepare` wrote, JSON values by name."""
    files: dict[str, dict[str, Any]]
    """{"bytes": ..., "sha256": ...} of each file."""
    sources: list[dict[str, Any]]
    """{"name": ..., "bytes": ..., "sha256": ...} of each file that it was made from."""
    licence: str | None

    def path(self, name: str) -> str:
        """Return the path of a file. Raises DataError if the folder does not have it."""
        if name not in self.files:
            raise DataError(f"{self.folder} does not contain {name}", prepare_again(self.case, self.kind))
        return os.path.join(self.folder, name)

    def array(self, name: str) -> Any:
        """Open a file in numpy's format, memory-mapped. Raises DataError."""
        import numpy

        try:
            return numpy.load(self.path(name), mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            reason = str(error).split("\n")[0]
            words = f"{self.path(name)} cannot be read ({reason})"
            raise DataError(words, prepare_again(self.case, self.kind)) from None

    @property
    def digest(self) -> str:
        """`sha256:` and the hash of all names and checksums; equal for folders with equal contents."""
        lines = [f"{self.files[name]['sha256']}  {name}\n" for name in sorted(self.files)]
        return "sha256:" + hashlib.sha256("".join(lines).encode("utf-8")).hexdigest()

    def as_json(self) -> dict[str, Any]:
        """Return the folder as `prepare --json` prints it."""
        facts = self._asdict()
        del facts["case"], facts["kind"]
        return {**facts, "digest": self.digest}


def open_folder(
    folder: str,
    case: str,
    kind: str,
    formats: Sequence[str] | None = None,
    verify: Verification = Verification.SMALL_FILES,
    report: Report | None = None,
) -> PreparedFolder:
    """Open a prepared folder, or the one of this kind below it, and verify it.

    Args:
        folder: the prepared folder, or the folder OUT that has data/ and weights/.
        case: the case that the folder must have been prepared for.
        kind: `data` or `weights`.
        formats: formats that the caller can read; None accepts any.
        verify: how the files are compared with the index.
        report: called with ("check", bytes read, bytes to read, "bytes") while checksums are computed.

    Raises:
        DataError: the folder is missing, damaged, or of another case, kind or format.
    """
    folder = locate(folder, kind)
    path = os.path.join(folder, INDEX)
    try:
        with open_file(path, "rb") as file:
            content = file.read(_MAX_INDEX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        remedy = f"prepare one first: flagbench prepare {case} --{kind} SOURCE -o OUT, then use OUT"
        shown_folder = folder or "''"
        raise DataError(f"{shown_folder} is not a prepared folder: it has no {INDEX}", remedy) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error})", prepare_again(case, kind)) from None
    index = _parse_index(content, path, case, kind)
    _check_purpose(index, folder, case, kind, formats)
    opened = PreparedFolder(
        folder=folder,
        case=index["case"],
        kind=index["kind"],
        format=index["format"],
        facts=index["facts"],
        files=index["files"],
        sources=index.get("sources", []),
        licence=index.get("licence"),
    )
    _check_files(opened, verify, report)
    return opened


def prepare_again(case: str, kind: str) -> str:
    """Return the remedy for a damaged folder."""
    return f"prepare it again: flagbench prepare {case} --{kind} SOURCE -o OUT --force"


def _parse_index(content: bytes, path: str, case: str, kind: str) -> dict[str, Any]:
    """Parse the index of a folder, read from `path`. Raises DataError, whose remedy names `case` and `kind`."""
    try:
        if len(content) > _MAX_INDEX_BYTES:
            raise ValueError("it is too large")
        index = json.loads(content.decode("utf-8"))
        if not isinstance(index, dict) or index.get("schema") != SCHEMA:
            raise ValueError(f"it does not have the schema {SCHEMA}")
        _check_structure(index)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read ({error})", prepare_again(case, kind)) from None
    return index


def _check_purpose(
    index: Mapping[str, Any], folder: str, case: str, kind: str, formats: Sequence[str] | None
) -> None:
    """Raise DataError if a folder is for another case or kind, or in none of the formats (None accepts any)."""
    for key, wanted in (("case", case), ("kind", kind)):
        if index[key] != wanted:
            raise DataError(
                f"{folder} was prepared as the {key} {_quoted(index[key])}, not {wanted}",
                "use a folder that was prepared for it, or prepare one",
            )
    if formats is not None and index["format"] not in formats:
        readable_formats = " and ".join(formats)
        raise DataError(
            f"{folder} has the format {_quoted(index['format'])}; this flagbench reads {readable_formats}",
            prepare_again(case, kind),
        )


def _check_structure(index: dict[str, Any]) -> None:
    """Raise ValueError if anything in an index is missing or has the wrong type. Names must be plain file names.

    Only `sources` and `licence` are optional.
    """
    for key, expected_type in (("case", str), ("kind", str), ("format", str), ("facts", dict), ("files", dict)):
        if not isinstance(index.get(key), expected_type):
            raise ValueError(f"{key} is missing or has the wrong type")
    sources = index.get("sources", [])
    if not isinstance(sources, list) or not all(map(_is_source, sources)):
        raise ValueError("sources is not a list of files with their names, sizes and checksums")
    if index["kind"] not in KINDS or not index["files"]:
        raise ValueError("its kind is neither data nor weights, or it lists no files")
    for name, facts in index["files"].items():
        if not is_plain(name) or not name.isprintable():
            raise ValueError(f"{_quoted(name)} is not a plain file name")
        if not _has_size_and_checksum(facts):
            raise ValueError(f"{_quoted(name)} has no size or no checksum")


def _has_size_and_checksum(facts: Any) -> bool:
    if not isinstance(facts, dict):
        return False
    size = facts.get("bytes")
    sha256 = facts.get("sha256")
    if type(size) is not int or size < 0:  # not isinstance, which accepts true and false
        return False
    return isinstance(sha256, str) and _SHA256.fullmatch(sha256) is not None


def _is_source(facts: Any) -> bool:
    """Return whether a value is a file's name, size and checksum. The name is only shown, and may be any text."""
    return _has_size_and_checksum(facts) and isinstance(facts.get("name"), str)


def _quoted(value: Any) -> str:
    """Return a value from a file, quoted and shortened for a message."""
    return repr(value)[:_MAX_NAME_LENGTH]


def _needs_checksum(size: int, verify: Verification) -> bool:
    """Return whether the checksum of a file of `size` bytes is to be verified."""
    if verify is Verification.SMALL_FILES:
        return size <= MAX_CHECKSUM_BYTES_IN_A_RUN
    return verify is Verification.CHECKSUMS


def _check_files(opened: PreparedFolder, verify: Verification, report: Report | None) -> None:
    """Raise DataError for a file that is missing, has another size or, if that is verified, another checksum."""
    remedy = prepare_again(opened.case, opened.kind)
    files_to_sum = {}
    try:
        for name, facts in sorted(opened.files.items()):
            path = opened.path(name)
            status = os.stat(path)
            if not stat.S_ISREG(status.st_mode):
                raise DataError(f"{path} is not a file", remedy)
            if status.st_size != facts["bytes"]:
                words = f"{path} has {status.st_size} bytes; it was prepared with {facts['bytes']}"
                raise DataError(words, remedy)
            if _needs_checksum(status.st_size, verify):
                files_to_sum[name] = facts
        reading = Reading("check", sum(facts["bytes"] for facts in files_to_sum.values()), report)
        for name, facts in files_to_sum.items():
            path = opened.path(name)
            if sum_of(path, reading) != facts["sha256"]:
                raise DataError(f"{path} is damaged: its checksum differs", remedy)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error})", remedy) from None
