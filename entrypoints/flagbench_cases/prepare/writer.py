"""Writes a prepared folder atomically: to a temporary folder that is moved to its destination when complete.

The destination is OUT/KIND, where KIND is `data` or `weights`. A file lock is held meanwhile. The kernel releases it
when its process ends, so whoever holds it can safely remove leftovers of a killed `prepare`. In OUT these may be:

    .KIND.lock         the lock
    .KIND.preparing    the temporary folder
    .KIND.replaced     the old OUT/KIND, for the moment between moving it away and moving the new one there
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from typing import Any, Iterator

from flagbench_cases.prepare.disk import FULL, SLACK, file_lock, free_bytes, is_full
from flagbench_cases.prepare.progress import readable
from flagbench_cases.shared.errors import CaseError, DataError, UsageError
from flagbench_cases.shared.files import SCHEMA, Reading, Report, is_plain, sum_of, sync
from flagbench_core import __version__
from flagbench_core.data_folders import INDEX
from flagbench_core.exit_codes import ExitCode

SPACE_REMEDY = "free space there, or use a folder on another disk as -o"
MAX_NAME_LENGTH = 80
"""Most characters of a file name that an error shows."""


class Writer:
    """The interface through which a case's `prepare` writes its files, and the facts about them. See `writing`."""

    def __init__(self, folder: str, case: str, kind: str, licence: str | None, report: Report | None):
        self.folder = folder
        self.case = case
        self.kind = kind
        self._licence = licence
        self._report = report
        self._format: str | None = None
        self._facts: dict[str, Any] = {}
        self._sources: list[dict[str, Any]] = []
        self._reading = Reading("checksums of the sources", 0, report)

    def path(self, name: str) -> str:
        """Return the path for a file. Raises ValueError if `name` is not a plain file name."""
        if not is_plain(name):
            raise ValueError(f"{name!r} is not a plain file name")
        return os.path.join(self.folder, name)

    def need(self, size: int) -> None:
        """Raise CaseError (NOT_STORED) if the disk has too little space for another `size` bytes."""
        free = free_bytes(self.folder)
        if free is not None and free < size + SLACK:
            out = os.path.dirname(self.folder)
            words = f"{out} needs {readable(size)} of free space but has {readable(free)}"
            raise CaseError(words, SPACE_REMEDY, ExitCode.NOT_STORED)

    def fact(self, **facts: Any) -> None:
        """Add facts (JSON values) to `prepared.json`. Raises ValueError or TypeError for other values."""
        json.dumps(facts, allow_nan=False)  # raises here rather than in `finish`, after hours
        self._facts.update(facts)

    def licence(self, words: str) -> None:
        """Add licence information that depends on the source."""
        if self._licence is None:
            self._licence = words
        else:
            self._licence += f"; {words}"

    def source(self, path: str, name: str | None = None) -> None:
        """Record the name (default: base name), size and checksum of an input file. Raises DataError."""
        try:
            size = os.stat(path).st_size
            self._reading.total += size
            sha256 = sum_of(path, self._reading)
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror or error})", "give a readable file") from None
        encodable_name = (name or os.path.basename(path)).encode("utf-8", "replace").decode("utf-8")
        self._sources.append({"name": encodable_name, "bytes": size, "sha256": sha256})

    def format(self, name: str) -> None:
        """Set the format of the files, as NAME/vNUMBER."""
        self._format = name

    def finish(self) -> None:
        """Compute checksums, write the index, and flush everything to disk.

        Raises OSError, or ValueError if the case has not set the format or has written no files.
        """
        if self._format is None:
            raise ValueError("the format of the prepared files was not set")
        paths = self._written_files()
        sizes = {name: os.stat(path).st_size for name, path in paths.items()}
        reading = Reading("sums", sum(sizes.values()), self._report)
        files = {}
        for name, path in paths.items():
            files[name] = {"bytes": sizes[name], "sha256": sum_of(path, reading)}
        index_path = os.path.join(self.folder, INDEX)
        self._write_index(index_path, files)
        for path in [*paths.values(), index_path]:
            # The mode of the index, given by the umask: safetensors creates files readable only by their owner.
            shutil.copymode(index_path, path)
            sync(path)
        sync(self.folder)

    def _written_files(self) -> dict[str, str]:
        """Return the path of each file by name. Raises ValueError if there is none, or anything else."""
        names = sorted(os.listdir(self.folder))
        if not names:
            raise ValueError("no file was written")
        paths = {name: os.path.join(self.folder, name) for name in names}
        invalid = [name for name, path in paths.items() if not is_plain(name) or not os.path.isfile(path)]
        if invalid:
            raise ValueError(f"not plain files: {', '.join(invalid)}")
        return paths

    def _write_index(self, path: str, files: dict[str, dict[str, Any]]) -> None:
        """Write the index. `files`: {"bytes": ..., "sha256": ...} of each file."""
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
        with open(path, "w", encoding="utf-8") as file:
            json.dump(index, file, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
            file.write("\n")


@contextlib.contextmanager
def writing(
    out: str,
    case: str,
    kind: str,
    licence: str | None = None,
    force: bool = False,
    report: Report | None = None,
) -> Iterator[Writer]:
    """Return a context manager with a Writer, whose folder becomes OUT/KIND on success and is removed otherwise.

    Raises UsageError (USAGE) if OUT/KIND exists, OUT is not writable, or another process is preparing the same;
    CaseError (NOT_STORED) if the disk is full. With `force` a prepared folder is replaced atomically.
    """
    with _locked(out, kind):
        _remove_leftovers(out, kind)
        check_target(out, kind, force)
        try:
            os.mkdir(_temporary_folder(out, kind))
            writer = Writer(_temporary_folder(out, kind), case, kind, licence, report)
            yield writer
            writer.finish()
            check_target(out, kind, force)  # somebody may have put files there meanwhile
            _move_to_target(out, kind)
        except Exception as error:  # libraries have their own exceptions for a full disk
            if not isinstance(error, CaseError) and is_full(error, out):
                raise CaseError(f"the disk of {out} is full", SPACE_REMEDY, ExitCode.NOT_STORED) from error
            raise
        finally:
            shutil.rmtree(_temporary_folder(out, kind), ignore_errors=True)


def remove_partial(out: str, kind: str) -> None:
    """Remove leftovers of a killed `prepare`, unless another process is preparing the same kind in OUT."""
    if os.path.isdir(out):
        with contextlib.suppress(CaseError, OSError), _locked(out, kind):
            _remove_leftovers(out, kind)


def check_target(out: str, kind: str, force: bool) -> None:
    """Raise UsageError if OUT/KIND exists, unless `force` is set and it contains only what `prepare` wrote."""
    target = os.path.join(out, kind)
    if not os.path.lexists(target):
        return
    if os.path.islink(target) or not os.path.isdir(target):
        raise UsageError(f"{target} exists and is not a folder", "use another -o")
    try:
        names = set(os.listdir(target))
    except OSError as error:
        raise _unusable(target, error) from None
    if not names:
        return
    foreign = sorted(names - _names_in_index(target))
    if foreign:
        raise UsageError(
            f"{target} contains {repr(foreign[0])[:MAX_NAME_LENGTH]}, which prepare did not write",
            "move it elsewhere, or use another -o",
        )
    if not force:
        raise UsageError(f"{target} is already prepared", "use it, or replace it with --force")


def _names_in_index(folder: str) -> set[str]:
    """Return the names of the files in a prepared folder, and of its index; empty if it is not a prepared folder."""
    try:
        with open(os.path.join(folder, INDEX), encoding="utf-8") as file:
            index = json.load(file)
        if index["schema"] == SCHEMA:
            return {INDEX, *index["files"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return set()


@contextlib.contextmanager
def _locked(out: str, kind: str) -> Iterator[None]:
    """Return a context manager that creates OUT if necessary and locks one kind in it.

    Raises UsageError if OUT is not writable or another process is preparing the same kind there.
    """
    with contextlib.ExitStack() as stack:
        try:
            os.makedirs(out, exist_ok=True)
            stack.enter_context(file_lock(os.path.join(out, f".{kind}.lock")))
        except BlockingIOError:
            raise UsageError(
                f"another process is preparing {kind} in {out}", "wait for it, or use another -o"
            ) from None
        except OSError as error:
            raise _unusable(out, error) from None
        yield


def _unusable(out: str, error: OSError) -> CaseError:
    if error.errno in FULL:
        return CaseError(f"the disk of {out} is full", SPACE_REMEDY, ExitCode.NOT_STORED)
    return UsageError(f"{out} is not writable ({error.strerror or error})", "use a writable folder as -o")


def _temporary_folder(out: str, kind: str) -> str:
    """Return the path of the folder that is being written."""
    return os.path.join(out, f".{kind}.preparing")


def _replaced_folder(out: str, kind: str) -> str:
    """Return the path of the old folder for the moment in which the new one takes its place."""
    return os.path.join(out, f".{kind}.replaced")


def _move_to_target(out: str, kind: str) -> None:
    """Move a finished folder to its destination."""
    target = os.path.join(out, kind)
    if os.path.lexists(target):
        os.rename(target, _replaced_folder(out, kind))
    os.rename(_temporary_folder(out, kind), target)
    shutil.rmtree(_replaced_folder(out, kind), ignore_errors=True)
    sync(out)


def _remove_leftovers(out: str, kind: str) -> None:
    """Remove leftovers of killed processes, after restoring an old folder whose replacement was not moved yet."""
    target = os.path.join(out, kind)
    replaced = _replaced_folder(out, kind)
    if os.path.lexists(replaced) and not os.path.lexists(target):
        os.rename(replaced, target)
    for folder in (replaced, _temporary_folder(out, kind)):
        shutil.rmtree(folder, ignore_errors=True)
