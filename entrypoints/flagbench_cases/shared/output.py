"""Where a record goes: the one line on stdout, a folder, a store. Stdout is kept aside from the first moment."""

import contextlib
import errno
import hashlib
import json
import os
import select
import tempfile
from typing import Any, Dict, Optional
from urllib.parse import unquote, urlparse

from flagbench_cases.shared.errors import CaseError, ExitCode, UsageError
from flagbench_cases.shared.redaction import redact

NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def keep_stdout() -> int:
    """A private copy of stdout; descriptor 1 then leads to stderr, for whatever libraries and banners print.

    Where stdout is closed, the copy is one that cannot be written to: `write_line` says so.
    """
    try:
        os.fstat(1)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 1)
    kept = os.dup(1)
    os.set_inheritable(kept, False)
    os.dup2(2, 1)
    return kept


class Printing:
    """A line to be written to a descriptor that may be slow, full, closed or broken."""

    def __init__(self, descriptor: int, line: str, what: str = "the record") -> None:
        self._descriptor = descriptor
        self._left = (line + "\n").encode("utf-8")
        self._what = what

    def go_on(self, patience: Optional[float] = None) -> bool:
        """Write until the line is complete or nothing was accepted for `patience` seconds; whether it is complete.

        Raises CaseError (14) where the reader is gone or the disk is full.
        """
        waiting = select.poll()
        waiting.register(self._descriptor, select.POLLOUT)
        try:
            while self._left:
                if not waiting.poll(None if patience is None else patience * 1000):
                    return False
                # As much as a ready pipe accepts without blocking.
                with contextlib.suppress(BlockingIOError):
                    self._left = self._left[os.write(self._descriptor, self._left[:4096]) :]
        except OSError as error:
            raise CaseError(
                "%s could not be printed on stdout (%s)" % (self._what, os.strerror(error.errno or 0)),
                "read stdout to its end, or give --out" if self._what == "the record" else "read stdout to its end",
                ExitCode.NOT_STORED,
            ) from None
        return True


def write_line(descriptor: int, line: str, what: str = "the record") -> None:
    """Write the whole line. Raises CaseError (14) where the reader is gone or the disk is full."""
    Printing(descriptor, line, what).go_on()


def write_file(folder: str, name: str, line: str, replace: bool = False) -> str:
    """Write `name` into `folder` atomically: whole, or not at all. Without `replace` an existing file is kept."""
    path = os.path.join(folder, name)
    part: Optional[str] = None
    try:
        os.makedirs(folder, exist_ok=True)
        handle, part = tempfile.mkstemp(prefix=".", suffix=".part", dir=folder)
        with os.fdopen(handle, "wb") as file:
            file.write((line + "\n").encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        os.chmod(part, 0o644)
        if replace:
            os.replace(part, path)
        else:
            _link_or_claim(part, path)
    except OSError as error:
        taken = error.errno == errno.EEXIST and part is not None
        reason = "it is there already" if taken else os.strerror(error.errno or 0)
        raise CaseError(
            "the record could not be written to %s (%s)" % (path, reason),
            "give a folder with room and write permission; see whether the record is on stdout",
            ExitCode.NOT_STORED,
        ) from None
    finally:
        if part is not None and os.path.exists(part):
            os.unlink(part)
    return path


def _link_or_claim(part: str, path: str) -> None:
    """Give the whole file its name, unless the name is taken (FileExistsError)."""
    try:
        os.link(part, path)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        # Mounted buckets and some shares have no hard links: claim the name, then put the file in its place.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        try:
            os.replace(part, path)
        except OSError:
            os.unlink(path)
            raise


def store_folder(url: str) -> str:
    """The folder of a file:// store. Other kinds of store are put to by the host tool."""
    parsed = urlparse(url)
    if parsed.scheme not in ("", "file") or parsed.netloc not in ("", "localhost") or not parsed.path:
        raise UsageError(
            "--store %s is not a file:// URL" % redact(url),
            "give file:///FOLDER, or --out and flagbench",
        )
    # A plain path is taken as it stands: there, '%20' and '#' are part of the name.
    return os.path.abspath(unquote(parsed.path) if parsed.scheme else url)


def store(root: str, record: Dict[str, Any], line: str) -> str:
    """Put a record into a store: its checksum first, so that no reader ever sees a record without one.

    Raises CaseError (14) where it cannot be kept or is there already.
    """
    layout = _store_layout()
    folder, name = os.path.split(store_path(root, record))
    sha256 = hashlib.sha256((line + "\n").encode("utf-8")).hexdigest()
    checksum = layout["checksum_text"].format(sha256=sha256, name=name)
    write_file(folder, layout["checksum"].format(name=name), checksum.rstrip("\n"))
    return write_file(folder, name, line)


def store_path(root: str, record: Dict[str, Any]) -> str:
    """The file of a record in a store."""
    names = {name: record[name] for name in ("case", "stack", "record_id")}
    return os.path.join(root, _store_layout()["record"].format(day=record["created_at"][:10], **names))


def _store_layout() -> Dict[str, str]:
    """The layout of a store, compiled from manifests/store-v1.json, which the host side reads."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "store.json"), encoding="utf-8") as file:
        return dict(json.load(file))
