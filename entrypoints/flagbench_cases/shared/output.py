"""Writes the record to stdout and to files. The original stdout is reserved for it from the start."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import tempfile

from flagbench_cases.shared.errors import CaseError, UsageError
from flagbench_cases.shared.system import in_image
from flagbench_core.exit_codes import ExitCode

NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def keep_stdout() -> int:
    """Duplicate stdout and redirect descriptor 1 to stderr, so that output of libraries does not get into stdout.

    Returns the duplicate. If stdout is closed, the duplicate is not writable, and `write_line` raises an error.
    """
    try:
        os.fstat(1)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 1)
    kept = os.dup(1)
    os.set_inheritable(kept, False)
    os.dup2(2, 1)
    return kept


class LineWriter:
    """Writes a line to a descriptor that may be slow, full, closed or broken."""

    def __init__(self, descriptor: int, line: str, what: str = "the record") -> None:
        self._descriptor = descriptor
        self._left = (line + "\n").encode("utf-8")
        self._what = what

    def write(self, timeout: float | None = None) -> bool:
        """Write the rest of the line until nothing is accepted for `timeout` seconds; returns whether it is complete.

        Raises CaseError (14) if the descriptor is closed, its reader has exited or the disk is full.
        """
        milliseconds = None
        if timeout is not None:
            milliseconds = timeout * 1000
        waiting = select.poll()
        waiting.register(self._descriptor, select.POLLOUT)
        try:
            while self._left:
                if not waiting.poll(milliseconds):
                    return False
                # A ready pipe accepts at least this many bytes without blocking.
                with contextlib.suppress(BlockingIOError):
                    self._left = self._left[os.write(self._descriptor, self._left[:4096]) :]
        except OSError as error:
            raise self._error(error) from None
        return True

    def _error(self, error: OSError) -> CaseError:
        remedy = "read all of stdout"
        if self._what == "the record":
            remedy = "read all of stdout, or set --out"
        reason = os.strerror(error.errno or 0)
        return CaseError(f"{self._what} could not be printed on stdout ({reason})", remedy, ExitCode.NOT_STORED)


def write_line(descriptor: int, line: str, what: str = "the record") -> None:
    """Write the whole line. Raises CaseError (14) if stdout is closed or cannot be written."""
    LineWriter(descriptor, line, what).write()


def write_file(folder: str, name: str, line: str, replace: bool = False, newline: bool = True) -> str:
    """Write a file atomically; returns its path. Raises CaseError (14) if it exists, unless `replace` is set."""
    path = os.path.join(folder, name)
    part: str | None = None
    try:
        os.makedirs(folder, exist_ok=True)
        handle, part = tempfile.mkstemp(prefix=".", suffix=".part", dir=folder)
        with os.fdopen(handle, "wb") as file:
            file.write(line.encode("utf-8", "surrogateescape"))
            if newline:
                file.write(b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.chmod(part, 0o644)
        if replace:
            os.replace(part, path)
        else:
            _link_or_claim(part, path)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        if error.errno == errno.EEXIST and part is not None:
            reason = "it already exists"
        raise CaseError(
            f"the record could not be written to {path} ({reason})",
            "use a writable folder with free space; the record may still be on stdout",
            ExitCode.NOT_STORED,
        ) from None
    finally:
        if part is not None and os.path.exists(part):
            os.unlink(part)
    return path


def check_folder(what: str, folder: str) -> None:
    """Create a folder if it is missing. Raises UsageError if no file can be created in it."""
    try:
        os.makedirs(folder, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        words = f"{what} cannot be written: {folder} ({reason})"
        raise UsageError(words, _folder_remedy(error)) from None


def _folder_remedy(error: OSError) -> str:
    if in_image() and isinstance(error, PermissionError):
        return (
            f"use a folder in which uid {os.getuid()} may create files, or run the container as the folder's owner: "
            '`docker run --user "$(id -u):$(id -g)" ...`'
        )
    return "use a folder in which this user may create files"


def _link_or_claim(part: str, path: str) -> None:
    """Move the complete file to its final name. Raises FileExistsError if the name is taken."""
    try:
        os.link(part, path)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        # Mounted buckets and some network shares do not support hard links: create the name, then replace it.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        try:
            os.replace(part, path)
        except OSError:
            os.unlink(path)
            raise
