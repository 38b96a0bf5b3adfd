"""Writes the record of a run to stdout and to files.

Programs read the record from stdout, so `keep_stdout` reserves the original stdout for it from the start.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import tempfile

from flagbench_cases.shared.errors import CaseError, UsageError
from flagbench_cases.shared.system import in_image
from flagbench_core.exit_codes import ExitCode

READY_BYTES = 4096
"""A pipe that is ready accepts at least this many bytes without blocking (PIPE_BUF)."""
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def keep_stdout() -> int:
    """Duplicate stdout and redirect descriptor 1 to stderr, so that libraries cannot write into the record.

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

    def __init__(self, descriptor: int, line: str, content_name: str = "the record") -> None:
        """`content_name`: how messages of errors call the line."""
        self._descriptor = descriptor
        self._unwritten = (line + "\n").encode("utf-8")
        self._content_name = content_name

    def write(self, timeout: float | None = None) -> bool:
        """Write what is not written yet, until nothing is accepted for `timeout` seconds (None: wait for ever).

        Returns whether the line is complete. Raises CaseError (NOT_STORED) if the descriptor is closed, its reader
        has exited or the disk is full.
        """
        milliseconds = None
        if timeout is not None:
            milliseconds = timeout * 1000
        waiting = select.poll()
        waiting.register(self._descriptor, select.POLLOUT)
        try:
            while self._unwritten:
                if not waiting.poll(milliseconds):
                    return False
                with contextlib.suppress(BlockingIOError):
                    written = os.write(self._descriptor, self._unwritten[:READY_BYTES])
                    self._unwritten = self._unwritten[written:]
        except OSError as error:
            raise self._error(error) from None
        return True

    def _error(self, error: OSError) -> CaseError:
        remedy = "read all of stdout"
        if self._content_name == "the record":
            remedy = "read all of stdout, or set --out"
        reason = os.strerror(error.errno or 0)
        return CaseError(
            f"{self._content_name} could not be printed on stdout ({reason})", remedy, ExitCode.NOT_STORED
        )


def write_line(descriptor: int, line: str, content_name: str = "the record") -> None:
    """Write the whole line. Raises CaseError (NOT_STORED) if stdout is closed or cannot be written."""
    LineWriter(descriptor, line, content_name).write()


def write_file(folder: str, name: str, line: str, replace: bool = False, newline: bool = True) -> str:
    """Write a text to a file atomically; returns its path. Raises CaseError (NOT_STORED) if the file cannot be
    written.

    `replace`: whether a file of this name is replaced; otherwise it is an error. `newline`: whether one is appended.
    """
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
    """How to get a writable folder. Users of an image often mount a folder that belongs to another user."""
    if in_image() and isinstance(error, PermissionError):
        return (
            f"use a folder in which uid {os.getuid()} may create files, or run the container as the folder's owner: "
            '`docker run --user "$(id -u):$(id -g)" ...`'
        )
    return "use a folder in which this user may create files"


def _link_or_claim(part: str, path: str) -> None:
    """Give the complete file `part` its final name. Raises FileExistsError if the name is taken.

    A link, unlike a rename, fails if the name is taken. The caller removes `part`.
    """
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
