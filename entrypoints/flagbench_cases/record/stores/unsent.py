"""Results that wait until they are stored: kept before an upload begins, so that a kill loses nothing.

The folder is laid out as the store will be, and `meant-for` in it names the store. `flagbench results push` stores
what it finds in the user's data folder, or in an --out folder, and removes it.
"""

import contextlib
import fcntl
import hashlib
import os
import shlex
from typing import Any, Dict, Iterator, List, Optional

from flagbench_cases.record.stores import layout
from flagbench_cases.record.stores.folder import FolderStore, place
from flagbench_cases.record.stores.store import Bundle
from flagbench_cases.shared import output
from flagbench_cases.shared.errors import CaseError

FOLDER = "unsent"
MEANT_FOR = "meant-for"


class Unsent:
    """What one node keeps until it is stored."""

    def __init__(self, meant_for: str, out: Optional[str]) -> None:
        """`out`: the folder of --out, which outlives a container; without it, the user's data folder."""
        self.command = "flagbench results push" + (" %s" % shlex.quote(out) if out else "")
        """Stores what waits, on a machine where the folder of --out has the name that it has here."""
        self._meant_for = meant_for
        self._base = os.path.join(out or _data_folder(), FOLDER)
        name = hashlib.sha256(meant_for.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        self.folder = os.path.join(self._base, name)
        self._kept: List[str] = []

    def keep(self, record_id: str, record: Optional[Dict[str, Any]], line: str, bundle: Optional[Bundle]) -> None:
        """Keep a record, a bundle or both. Raises OSError, or CaseError (14) for a record that cannot be written."""
        with _locked(self._base):
            os.makedirs(self.folder, exist_ok=True)
            output.write_file(self.folder, MEANT_FOR, self._meant_for, replace=True, newline=False)
            if bundle is not None:
                path = os.path.join(self.folder, layout.bundle_key(record_id, bundle.node, bundle.sha256))
                place(bundle.path, path)
                self._kept.append(path)
            if record is not None:
                path = os.path.join(self.folder, layout.record_key(record))
                checksum = layout.checksum_name(path)
                try:
                    FolderStore(self.folder).put_record(record, line)
                except CaseError:
                    with contextlib.suppress(OSError):
                        if not os.path.lexists(path):
                            os.unlink(checksum)
                    raise
                self._kept += [path, checksum]

    def forget(self) -> None:
        """Remove what was stored, and folders that are empty then. A failure leaves it to be stored again."""
        with contextlib.suppress(OSError), _locked(self._base):
            for path in self._kept:
                with contextlib.suppress(FileNotFoundError):  # `flagbench results push` has stored it meanwhile
                    os.unlink(path)
                _remove_empty(os.path.dirname(path), self.folder)
            if os.listdir(self.folder) == [MEANT_FOR]:
                os.unlink(os.path.join(self.folder, MEANT_FOR))
                _remove_empty(self.folder, os.path.dirname(self._base))


def _data_folder() -> str:
    """The folder of this user's data, as platformdirs has it on the host side."""
    base = os.environ.get("XDG_DATA_HOME", "").strip() or os.path.expanduser("~/.local/share")
    return os.path.join(base, "flagbench")


def _remove_empty(folder: str, end: str) -> None:
    """Remove a folder and those above it, below `end`, as far as they are empty."""
    with contextlib.suppress(OSError):
        while folder != end:
            os.rmdir(folder)
            folder = os.path.dirname(folder)


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Hold a folder, created where it is missing, for one process: another one may be about to remove it. On a file
    system without such locks it is not held."""
    while True:
        os.makedirs(folder, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(folder)):
                    yield
                    return
        finally:
            os.close(descriptor)
