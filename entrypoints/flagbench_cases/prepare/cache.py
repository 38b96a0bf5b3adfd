"""The cache of what was fetched from a bucket: a folder for each prepared folder, complete once it has its index.

FLAGBENCH_CACHE names it; else it is a volume mounted at /cache, as in a container, else `flagbench` in the user's
cache folder, else a folder in TMPDIR.
"""

import contextlib
import glob
import hashlib
import os
import stat
import tempfile
from typing import Any, Callable, Dict, Iterator, Mapping

from flagbench_cases.prepare.disk import SLACK, file_lock, free_bytes
from flagbench_cases.prepare.progress import readable
from flagbench_cases.shared import user_home
from flagbench_cases.shared.errors import DataError, UsageError
from flagbench_cases.shared.files import INDEX, sync

VARIABLE = "FLAGBENCH_CACHE"
PREPARED = "prepared"
MOUNT = "/cache"
_NAME_DIGITS = 32


def root(environment: Mapping[str, str] = os.environ) -> str:
    """The cache folder. It need not exist yet. Raises UsageError if it would be in TMPDIR and cannot."""
    given = environment.get(VARIABLE)
    if given:
        return os.path.abspath(given)
    if os.path.ismount(MOUNT) and user_home.writable(MOUNT):
        return MOUNT
    home = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME") or "", ".cache")
    if user_home.writable(home):
        return os.path.join(home, "flagbench")
    place = os.path.join(tempfile.gettempdir(), "flagbench-cache-%d" % os.geteuid())
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(place, 0o700)
        if os.lstat(place).st_uid != os.geteuid():  # TMPDIR is everybody's
            raise PermissionError("it belongs to another user")
    except OSError as error:
        raise _unusable(place, error) from None
    return place


def folder_of(case: str, kind: str, content: bytes) -> str:
    """The folder for the prepared folder with this `prepared.json`: another index has another one, so that nothing in
    a complete folder ever changes."""
    name = "%s-%s-%s" % (case, kind, hashlib.sha256(content).hexdigest()[:_NAME_DIGITS])
    return os.path.join(root(), PREPARED, name)


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


@contextlib.contextmanager
def locked(folder: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Create a folder and hold its lock, which is beside it; what a killed download left of a file is removed.

    Raises UsageError.

    Args:
        waiting: called before waiting for another process.
    """
    path = os.path.join(os.path.dirname(folder), ".%s.lock" % os.path.basename(folder))
    with contextlib.ExitStack() as held:
        try:
            os.makedirs(folder, exist_ok=True)
            held.enter_context(file_lock(path, waiting))
            for left in glob.glob(os.path.join(glob.escape(folder), ".*.part")):
                os.unlink(left)
        except OSError as error:
            raise _unusable(folder, error) from None
        yield


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


def _unusable(path: str, error: OSError) -> UsageError:
    return UsageError(
        "%s cannot be used (%s)" % (path, error.strerror or error),
        "set %s to a writable folder on a disk that supports file locks" % VARIABLE,
    )
