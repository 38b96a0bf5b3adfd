"""The cache of what was fetched from a bucket: a folder for each prepared folder, complete once it has its index.

FLAGBENCH_CACHE names it; else it is a volume mounted at /cache, as in a container, else `flagbench` in the user's
cache folder, else a folder in TMPDIR.
"""

import contextlib
import errno
import glob
import hashlib
import os
import stat
import tempfile
from typing import Any, Callable, Dict, Mapping

from flagbench_cases.prepare.lock import FileLock
from flagbench_cases.prepare.writer import SLACK, free_bytes, readable
from flagbench_cases.shared import user_home
from flagbench_cases.shared.errors import DataError, UsageError
from flagbench_cases.shared.files import INDEX, sync

VARIABLE = "FLAGBENCH_CACHE"
PREPARED = "prepared"
MOUNT = "/cache"
_NAME_DIGITS = 32


def root(environment: Mapping[str, str] = os.environ) -> str:
    """The cache folder. It need not exist yet."""
    given = environment.get(VARIABLE)
    if given:
        return os.path.abspath(given)
    if os.path.ismount(MOUNT) and user_home.writable(MOUNT):
        return MOUNT
    home = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME") or "", ".cache")
    if user_home.writable(home):
        return os.path.join(home, "flagbench")
    return _fallback()


def folder_of(case: str, kind: str, content: bytes) -> str:
    """The folder for the prepared folder with this `prepared.json`: another index has another one, so that nothing in
    a complete folder ever changes."""
    name = "%s-%s-%s" % (case, kind, hashlib.sha256(content).hexdigest()[:_NAME_DIGITS])
    return os.path.join(root(), PREPARED, name)


def make(folder: str) -> None:
    """Create a folder of the cache. Raises UsageError."""
    try:
        if root() == _fallback():
            with contextlib.suppress(FileExistsError):
                os.mkdir(root(), 0o700)
        check_owner()
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error) from None


def check_owner() -> None:
    """Raise UsageError if the cache is in TMPDIR, which is everybody's, and another user made it."""
    place = root()
    if place != _fallback():
        return
    try:
        status = os.lstat(place)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise PermissionError(errno.EACCES, "it belongs to another user")
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unusable(place, error) from None


def _fallback() -> str:
    return os.path.join(tempfile.gettempdir(), "flagbench-cache-%d" % os.geteuid())


def is_complete(folder: str, files: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a folder has its index, which is written last, and all files, by their sizes."""
    return os.path.isfile(os.path.join(folder, INDEX)) and not missing(folder, files)


def missing(folder: str, files: Mapping[str, Mapping[str, Any]]) -> Dict[str, int]:
    """Files that a folder does not have in their size, with that size, bytes."""
    found = {}
    for name, facts in files.items():
        try:
            status = os.lstat(os.path.join(folder, name))
            there = stat.S_ISREG(status.st_mode) and status.st_size == facts["bytes"]
        except OSError:
            there = False
        if not there:
            found[name] = facts["bytes"]
    return found


def remove_leftovers(folder: str) -> None:
    """Remove what killed downloads left of files, of which none is under way. Raises OSError."""
    for path in glob.glob(os.path.join(glob.escape(folder), ".*.part")):
        os.unlink(path)


def check_room(need: int) -> None:
    """Raise DataError if the cache's disk has no room for `need` bytes."""
    place = os.path.join(root(), PREPARED)
    free = free_bytes(place)
    if need and free is not None and free < need + SLACK:
        raise DataError(
            "%s needs %s of free space but has %s" % (place, readable(need), readable(free)),
            "free space there, or set %s to a folder on another disk (in a container, mount one at %s)"
            % (VARIABLE, MOUNT),
        )


def finish(folder: str, content: bytes) -> None:
    """Write the index of a folder whose files are all there: from now on it is complete. Raises OSError."""
    part = os.path.join(folder, ".%s.part" % INDEX)
    with open(part, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, os.path.join(folder, INDEX))
    sync(folder)


def locked(folder: str, waiting: Callable[[], None]) -> FileLock:
    """The lock of a folder, beside it. Raises UsageError.

    Args:
        waiting: called before waiting for another process.
    """
    path = os.path.join(os.path.dirname(folder), ".%s.lock" % os.path.basename(folder))
    try:
        return FileLock(path, waiting)
    except OSError as error:
        raise _unusable(path, error) from None


def _unusable(path: str, error: OSError) -> UsageError:
    return UsageError(
        "%s cannot be used (%s)" % (path, error.strerror or error),
        "set %s to a writable folder on a disk that supports file locks" % VARIABLE,
    )
