"""The place of a prepared folder: who may write there, what is there already, and how the new one gets there.

All of it happens while a lock is held that the kernel takes back from a process however it ends, so whatever of an
earlier `prepare` still lies there is nobody's.
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
    """Make OUT where it is missing and hold the lock of one kind in it; an empty OUT that was made goes again.

    Raises UsageError where OUT cannot be written or another process prepares the same there.
    """
    made = _make(out)
    path = os.path.join(out, ".%s.lock" % kind)
    try:
        handle = _lock(path, out, kind)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)  # while it is held: who waits for it sees that it is not the one of that name
            os.close(handle)
    finally:
        if made:
            with contextlib.suppress(OSError):
                os.rmdir(out)


def _make(out: str) -> bool:
    """Whether OUT had to be made."""
    there = os.path.isdir(out)
    try:
        os.makedirs(out, exist_ok=True)
    except OSError as error:
        raise _unusable(out, error) from None
    return not there


def _unusable(out: str, error: OSError) -> CaseError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "free some space there, or give -o a folder on another disk"
        return CaseError("the disk of %s is full" % out, remedy, ExitCode.NOT_STORED)
    return UsageError(
        "%s cannot be written (%s)" % (out, error.strerror or error), "give -o a folder where you may write"
    )


def _lock(path: str, out: str, kind: str) -> int:
    """The descriptor of the locked file that has this name."""
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(out, error) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = os.stat(path)
        except FileNotFoundError:
            os.close(handle)  # its holder has just ended and taken the file along
            continue
        except OSError as error:
            os.close(handle)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise UsageError(
                    "another process is preparing %s in %s" % (kind, out), "wait for it, or give another -o"
                ) from None
            raise _unusable(out, error) from None
        if os.path.samestat(found, os.fstat(handle)):
            return handle
        os.close(handle)


def remove_leftovers(out: str, kind: str) -> None:
    """Remove what processes that were killed have left; an old folder that they had moved aside comes back."""
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
    """Raise UsageError where OUT/KIND is there, unless it may be replaced: it holds what `prepare` wrote, no more."""
    target = os.path.join(out, kind)
    if not os.path.lexists(target):
        return
    if os.path.islink(target) or not os.path.isdir(target):
        raise UsageError("%s is there and is not a folder" % target, "give another -o")
    try:
        found = sorted(os.listdir(target))
    except OSError as error:
        raise _unusable(target, error) from None
    if not found:
        return
    ours, others = _contents(target, found)
    if not ours:
        raise UsageError("%s is there and was not made by prepare" % target, "give another -o")
    if others:
        raise UsageError(
            "%s holds %s, which prepare did not write" % (target, repr(others[0])[:80]),
            "take it out of there, or give another -o",
        )
    if not force:
        raise UsageError("%s is prepared already" % target, "use it, or replace it with --force")


def _contents(target: str, found: List[str]) -> Tuple[bool, List[str]]:
    """Whether a folder has an index, and what lies in it that the index does not name."""
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
    """Put a finished folder in its place. Raises UsageError where somebody took the place meanwhile.

    An old folder is exchanged for the new one, so that there is one at every moment; where the file system cannot
    do that, the old one is moved aside, and comes back if the new one cannot take its place.
    """
    out = os.path.dirname(target)
    try:
        os.rename(part, target)  # also in the place of an empty folder
    except OSError as error:
        if error.errno not in TAKEN:
            raise
        if not force:
            raise UsageError(
                "%s was made by somebody else meanwhile" % target, "use it, or give another -o"
            ) from None
        check_target(out, os.path.basename(target), force)
        _exchange(part, target)
    sync(out)


def _exchange(part: str, target: str) -> None:
    try:
        _rename_exchange(part, target)
        return  # what is called `part` now is the old one, which goes with it
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
    """renameat2(2) with RENAME_EXCHANGE. Raises OSError (ENOSYS where the C library is too old to have it)."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
    if call(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), one)
