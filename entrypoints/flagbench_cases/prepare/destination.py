"""The destination of a prepared folder: locking, checking existing contents, and moving the new folder into place.

Everything happens under a file lock, which the kernel releases when its process ends, so leftovers of an earlier
`prepare` can be removed safely.
"""

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
from typing import Iterator, List, Tuple

from flagbench_cases.prepare.lock import FileLock
from flagbench_cases.shared.errors import CaseError, ExitCode, UsageError
from flagbench_cases.shared.files import INDEX, SCHEMA, sync

TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


@contextlib.contextmanager
def lock(out: str, kind: str) -> Iterator[None]:
    """A context manager that creates OUT if necessary and locks one kind in it. OUT is removed again if it stays
    empty.

    Raises UsageError if OUT is not writable or another process is preparing the same kind there.
    """

    def busy() -> None:
        raise UsageError("another process is preparing %s in %s" % (kind, out), "wait for it, or use another -o")

    there = os.path.isdir(out)
    try:
        try:
            os.makedirs(out, exist_ok=True)
            held = FileLock(os.path.join(out, ".%s.lock" % kind), busy)
        except OSError as error:
            raise _unusable(out, error) from None
        with held:
            yield
    finally:
        if not there:
            with contextlib.suppress(OSError):
                os.rmdir(out)


def _unusable(out: str, error: OSError) -> CaseError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "free space there, or use a folder on another disk as -o"
        return CaseError("the disk of %s is full" % out, remedy, ExitCode.NOT_STORED)
    return UsageError("%s is not writable (%s)" % (out, error.strerror or error), "use a writable folder as -o")


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

    An old folder is moved aside first, and restored if the new one cannot be moved. If this process is killed between
    the two, the next `prepare` restores it.
    """
    out, kind = os.path.split(target)
    aside = os.path.join(out, ".%s.replaced-%s" % (kind, secrets.token_hex(4)))
    try:
        os.rename(part, target)  # also replaces an empty folder
    except OSError as error:
        if error.errno not in TAKEN:
            raise
        if not force:
            raise UsageError(
                "%s was created by another process meanwhile" % target, "use it, or use another -o"
            ) from None
        check_target(out, kind, force)
        os.rename(target, aside)
        try:
            os.rename(part, target)
        except OSError:
            os.rename(aside, target)
            raise
        shutil.rmtree(aside, ignore_errors=True)
    sync(out)
