"""Writes a prepared folder beside its place and moves it there at the end: a reader sees all of it or nothing."""

import contextlib
import errno
import json
import os
import secrets
import shutil
import time
from typing import Any, Callable, Dict, Iterator, List, Optional

from flagbench_cases import __version__
from flagbench_cases.prepare import destination
from flagbench_cases.shared.errors import CaseError, DataError, ExitCode
from flagbench_cases.shared.files import INDEX, SCHEMA, Reading, is_plain, sum_of, sync

SLACK = 2**20
"""Bytes. With less than this left a disk counts as full: file systems keep the last blocks for themselves."""
FULL = (errno.ENOSPC, errno.EDQUOT)


class Writer:
    """What a case's `prepare` writes its files through. Made by `writing`."""

    def __init__(
        self, folder: str, case: str, kind: str, licence: Optional[str], report: Optional[Callable[..., None]]
    ):
        self.folder = folder
        self.case = case
        self.kind = kind
        self._licence = licence
        self._report = report
        self._format: Optional[str] = None
        self._facts: Dict[str, Any] = {}
        self._sources: List[Dict[str, Any]] = []
        self._reading = Reading("sums of the sources", 0, report)

    def path(self, name: str) -> str:
        """Where to write a file of this plain name. Raises ValueError for a name with folders in it."""
        if not is_plain(name):
            raise ValueError("%r is not a plain file name" % name)
        return os.path.join(self.folder, name)

    def need(self, size: int) -> None:
        """Say beforehand that `size` bytes will be written. Raises CaseError (14) where the disk has not got them."""
        free = free_bytes(self.folder)
        if free is not None and free < size + SLACK:
            raise CaseError(
                "%s needs %s and has %s" % (os.path.dirname(self.folder), readable(size), readable(free)),
                "free some space there, or give -o a folder on another disk",
                ExitCode.NOT_STORED,
            )

    def fact(self, **facts: Any) -> None:
        """Keep facts, JSON values, for the runs and for whoever reads `prepared.json`."""
        json.dumps(facts, allow_nan=False)
        self._facts.update(facts)

    def licence(self, words: str) -> None:
        """Add what is known of the licence by what was found."""
        self._licence = words if self._licence is None else "%s; %s" % (self._licence, words)

    def source(self, path: str, name: Optional[str] = None) -> None:
        """Record an input file's name (by default its last part), size and sum. Raises DataError."""
        try:
            size = os.stat(path).st_size
            self._reading.total += size
            sha256 = sum_of(path, self._reading)
        except OSError as error:
            raise DataError(
                "%s cannot be read (%s)" % (path, error.strerror or error), "give a file you may read"
            ) from None
        shown = (name or os.path.basename(path)).encode("utf-8", "replace").decode("utf-8")
        self._sources.append({"name": shown, "bytes": size, "sha256": sha256})

    def format(self, name: str) -> None:
        """Name the format of the files, like `glm-cloze/v1`."""
        self._format = name

    def finish(self) -> None:
        """Take every file's sum, write the index, and bring all to the disk. Raises OSError."""
        if self._format is None:
            raise ValueError("the format of the prepared files was not named")
        names = sorted(os.listdir(self.folder))
        strange = [n for n in names if not is_plain(n) or not os.path.isfile(os.path.join(self.folder, n))]
        if strange or not names:
            raise ValueError("prepared files are %s" % (", ".join(strange) or "missing"))
        sizes = {name: os.stat(os.path.join(self.folder, name)).st_size for name in names}
        reading, files = Reading("sums", sum(sizes.values()), self._report), {}
        for name in names:
            files[name] = {"bytes": sizes[name], "sha256": sum_of(os.path.join(self.folder, name), reading)}
        index = {
            "schema": SCHEMA,
            "case": self.case,
            "kind": self.kind,
            "format": self._format,
            "files": files,
            "facts": self._facts,
            "sources": self._sources,
            "licence": self._licence,
            "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "flagbench": __version__,
        }
        index_path = os.path.join(self.folder, INDEX)
        with open(index_path, "w", encoding="utf-8") as file:
            json.dump(index, file, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
            file.write("\n")
        for path in [os.path.join(self.folder, name) for name in names] + [index_path]:
            # As the umask made the index: safetensors makes files that only their owner may read.
            shutil.copymode(index_path, path)
            sync(path)
        sync(self.folder)


@contextlib.contextmanager
def writing(
    out: str,
    case: str,
    kind: str,
    licence: Optional[str] = None,
    force: bool = False,
    report: Optional[Callable[..., None]] = None,
) -> Iterator[Writer]:
    """A writer whose folder becomes OUT/KIND when the block ends well, and is removed when it does not.

    Raises UsageError (2) where OUT/KIND is there already or OUT cannot be written, or somebody else is preparing the
    same; CaseError (14) where the disk is full. With `force` a prepared folder is replaced, at one stroke.
    """
    with destination.lock(out, kind):
        destination.remove_leftovers(out, kind)
        destination.check_target(out, kind, force)
        target = os.path.join(out, kind)
        part = os.path.join(out, ".%s.preparing-%s" % (kind, secrets.token_hex(4)))
        try:
            os.mkdir(part)
            writer = Writer(part, case, kind, licence, report)
            yield writer
            writer.finish()
            destination.move(part, target, force)
        except Exception as error:  # libraries have types of their own for a full disk
            if not isinstance(error, CaseError) and is_full(error, out):
                raise CaseError(
                    "the disk of %s is full" % out,
                    "free some space there, or give -o a folder on another disk",
                    ExitCode.NOT_STORED,
                ) from error
            raise
        finally:
            shutil.rmtree(part, ignore_errors=True)


def is_full(error: Exception, folder: str) -> bool:
    """Whether an error comes of a full disk. Libraries that write files do not all keep the number of the error."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in FULL
    free = free_bytes(folder)
    return "No space left" in str(error) or (free is not None and free < SLACK)


def free_bytes(folder: str) -> Optional[int]:
    """Bytes that this user may still write where a folder is; None where the system does not say."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def readable(size: float) -> str:
    """A number of bytes for a person: `12.3 MB`."""
    if size < 1000:
        return "%d bytes" % size
    units = iter(("kB", "MB", "GB"))
    unit, size = next(units), size / 1000
    while size >= 999.95 and unit != "GB":
        unit, size = next(units), size / 1000
    return "%.1f %s" % (size, unit)
