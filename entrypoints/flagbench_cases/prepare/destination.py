"""The destination of a prepared folder: locking, checking existing contents, and moving the new folder into place.

Everything happens under a file lock, which the kernel releases when its process ends, so leftovers of an earlier
`prepare` can be removed safely.
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
from typing import Iterator, List, Tuple

from flagbench_cases.shared.errors import CaseError, ExitCode, UsageError
from flagbench_cases.shared.files import INDEX, SCHEMA, sync

AT_FDCWD = -100
RENAME_EXCHANGE = 2
CANNOT_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EXDEV, errno.EPERM)
TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


@contextlib.contextmanager
def lock(out: str, kind: str) -> Iterator[None]:
    """A context manager that creates OUT if necessary and locks one kind in it. OUT is removed again if it stays
    empty.

    Raises UsageError if OUT is not writable or another process is preparing the same kind there.
    """
    made = _make(out)
    path = os.path.join(out, ".%s.lock" % kind)
    try:
        handle = _lock(path, out, kind)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)  # while locked: another process then notices that its descriptor is stale
            os.close(handle)
    finally:
        if made:
            with contextlib.suppress(OSError):
                os.rmdir(out)


def _make(out: str) -> bool:
    """Create OUT if necessary; returns whether it was created."""
    there = os.path.isdir(out)
    try:
        os.makedirs(out, exist_ok=True)
    except OSError as error:
        raise _unusable(out, error) from None
    return not there


def _unusable(out: str, error: OSError) -> CaseError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "free space there, or use a folder on another disk as -o"
        return CaseError("the disk of %s is full" % out, remedy, ExitCode.NOT_STORED)
    return UsageError("%s is not writable (%s)" % (out, error.strerror or error), "use a writable folder as -o")


def _lock(path: str, out: str, kind: str) -> int:
    """Lock the file with this name; returns its descriptor."""
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(out, error) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = os.stat(path)
        except FileNotFoundError:
            os.close(handle)  # its owner has just finished and removed it
            continue
        except OSError as error:
            os.close(handle)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise UsageError(
                    "another process is preparing %s in %s" % (kind, out), "wait for it, or use another -o"
                ) from None
            raise _unusable(out, error) from None
        if os.path.samestat(found, os.fstat(handle)):
            return handle
        os.close(handle)


def remove_leftovers(out: str, kind: str) -> None:
    """Remove leftovers of killed processes; an old folder that they had moved aside is restored."""
    target = os.path.join(out, kind)
    for name in _left(out, kind, "replaced"):
        if not os.path.lexists(target):
            os.rename(os.path.join(out, name), target)
    for name in _left(out, kind, "replaced") + _left(out, kind, "preparing"):
        shutil.rmtree(os.path.join(out, name), ignore_errors=True)


def _left(out: str, kind: str, what: str) -> List[str]:
    pattern = re.compile(r"\.%s\.%s-[0-9a-f]{8}" % (kind, what))
    return [
        name
        for name in sorted(os.listdir(out))
        if pattern.fullmatch(name) and not os.path.islink(os.path.join(out, name))
    ]


def check_target(out: str, kind: str, force: bool) -> None:
    """Raise UsageError if OUT/KIND exists, unless `force` is set and it contains only what `prepare` wrote."""
    target = os.path.join(out, kind)
    if not os.path.lexists(target):
        return
    if os.path.islink(target) or not os.path.isdir(target):
        raise UsageError("%s exists and is not a folder" % target, "use another -o")
    try:
        found = sorted(os.listdir(target))
    except OSError as error:
        raise _unusable(target, error) from None
    if not found:
        return
    ours, others = _contents(target, found)
    if not ours:
        raise UsageError("%s exists and was not made by prepare" % target, "use another -o")
    if others:
        raise UsageError(
            "%s contains %s, which prepare did not write" % (target, repr(others[0])[:80]),
            "move it elsewhere, or use another -o",
        )
    if not force:
        raise UsageError("%s is already prepared" % target, "use it, or replace it with --force")


def _contents(target: str, found: List[str]) -> Tuple[bool, List[str]]:
    """Whether a folder has an index, and the names in it that the index does not list."""
    try:
        with open(os.path.join(target, INDEX), encoding="utf-8") as file:
            index = json.load(file)
        known = set(index["files"]) if index["schema"] == SCHEMA else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False, []
    if known is None:
        return False, []
    return True, [name for name in found if name not in known and name != INDEX]


def move(part: str, target: str, force: bool) -> None:
    """Move a finished folder to its destination. Raises UsageError if that was created meanwhile.

    An old folder is exchanged atomically. If the file system does not support this, the old one is moved aside, and
    restored if the new one cannot be moved.
    """
    out = os.path.dirname(target)
    try:
        os.rename(part, target)  # also replaces an empty folder
    except OSError as error:
        if error.errno not in TAKEN:
            raise
        if not force:
            raise UsageError(
                "%s was created by another process meanwhile" % target, "use it, or use another -o"
            ) from None
        check_target(out, os.path.basename(target), force)
        _exchange(part, target)
    sync(out)


def _exchange(part: str, target: str) -> None:
    try:
        _rename_exchange(part, target)
        return  # `part` now is the old folder, which the caller removes
    except OSError as error:
        if error.errno not in CANNOT_EXCHANGE:
            raise
    out, kind = os.path.split(target)
    aside = os.path.join(out, ".%s.replaced-%s" % (kind, secrets.token_hex(4)))
    os.rename(target, aside)
    try:
        os.rename(part, target)
    except OSError:
        os.rename(aside, target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _rename_exchange(one: str, other: str) -> None:
    """renameat2(2) with RENAME_EXCHANGE. Raises OSError (ENOSYS if the C library does not have it)."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
    if call(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), one)
