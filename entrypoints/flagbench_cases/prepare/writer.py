"""Writes a prepared folder atomically: to a temporary folder that is moved to its destination when complete."""

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
"""Bytes. With less free space than this a disk counts as full, since file systems reserve the last blocks."""
FULL = (errno.ENOSPC, errno.EDQUOT)


class Writer:
    """The interface through which a case's `prepare` writes its files. Created by `writing`."""

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
        self._reading = Reading("checksums of the sources", 0, report)

    def path(self, name: str) -> str:
        """The path for a file. Raises ValueError if `name` is not a plain file name."""
        if not is_plain(name):
            raise ValueError("%r is not a plain file name" % name)
        return os.path.join(self.folder, name)

    def need(self, size: int) -> None:
        """Check in advance that `size` bytes can be written. Raises CaseError (14) if the disk is too full."""
        free = free_bytes(self.folder)
        if free is not None and free < size + SLACK:
            raise CaseError(
                "%s needs %s of free space but has %s"
                % (os.path.dirname(self.folder), readable(size), readable(free)),
                "free space there, or use a folder on another disk as -o",
                ExitCode.NOT_STORED,
            )

    def fact(self, **facts: Any) -> None:
        """Add facts (JSON values) to `prepared.json`."""
        json.dumps(facts, allow_nan=False)
        self._facts.update(facts)

    def licence(self, words: str) -> None:
        """Add licence information that depends on the source."""
        self._licence = words if self._licence is None else "%s; %s" % (self._licence, words)

    def source(self, path: str, name: Optional[str] = None) -> None:
        """Record the name (default: base name), size and checksum of an input file. Raises DataError."""
        try:
            size = os.stat(path).st_size
            self._reading.total += size
            sha256 = sum_of(path, self._reading)
        except OSError as error:
            raise DataError(
                "%s cannot be read (%s)" % (path, error.strerror or error), "give a readable file"
            ) from None
        shown = (name or os.path.basename(path)).encode("utf-8", "replace").decode("utf-8")
        self._sources.append({"name": shown, "bytes": size, "sha256": sha256})

    def format(self, name: str) -> None:
        """Set the format of the files, as NAME/vNUMBER."""
        self._format = name

    def finish(self) -> None:
        """Compute checksums, write the index, and flush everything to disk. Raises OSError."""
        if self._format is None:
            raise ValueError("the format of the prepared files was not set")
        names = sorted(os.listdir(self.folder))
        strange = [n for n in names if not is_plain(n) or not os.path.isfile(os.path.join(self.folder, n))]
        if strange or not names:
            raise ValueError("invalid or missing prepared files: %s" % (", ".join(strange) or "none written"))
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
            # The mode of the index, given by the umask: safetensors creates files readable only by their owner.
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
    """A context manager with a writer whose folder becomes OUT/KIND on success, and is removed otherwise.

    Raises UsageError (2) if OUT/KIND exists, OUT is not writable, or another process is preparing the same; CaseError
    (14) if the disk is full. With `force` a prepared folder is replaced atomically.
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
        except Exception as error:  # libraries have their own exceptions for a full disk
            if not isinstance(error, CaseError) and is_full(error, out):
                raise CaseError(
                    "the disk of %s is full" % out,
                    "free space there, or use a folder on another disk as -o",
                    ExitCode.NOT_STORED,
                ) from error
            raise
        finally:
            shutil.rmtree(part, ignore_errors=True)


def is_full(error: Exception, folder: str) -> bool:
    """Whether an error was caused by a full disk. Not all libraries preserve errno."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in FULL
    free = free_bytes(folder)
    return "No space left" in str(error) or (free is not None and free < SLACK)


def free_bytes(folder: str) -> Optional[int]:
    """Free space available to this user at a folder, bytes; None if unknown."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def readable(size: float) -> str:
    """A human-readable number of bytes: `12.3 MB`."""
    if size < 1000:
        return "%d bytes" % size
    units = iter(("kB", "MB", "GB"))
    unit, size = next(units), size / 1000
    while size >= 999.95 and unit != "GB":
        unit, size = next(units), size / 1000
    return "%.1f %s" % (size, unit)
