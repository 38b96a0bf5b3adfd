"""Results that wait until they are stored: kept before an upload begins, so that a kill loses nothing.

They wait in the folder of --out, which outlives a container, else in the user's data folder: `ID.json` and
`ID.node-K-SHA256.tar.gz`, each beside a file `.meant-for` that names the store. It is written first and removed last.
`flagbench results push` stores what it finds there.
"""

import contextlib
import os
import shlex
from typing import Callable, Optional

from flagbench_cases.record.stores import layout
from flagbench_cases.record.stores.folder import place
from flagbench_cases.record.stores.store import Bundle
from flagbench_cases.shared import output
from flagbench_cases.shared.errors import CaseError

MEANT_FOR = ".meant-for"


class Unsent:
    """What one node keeps until it is stored."""

    def __init__(self, meant_for: str, out: Optional[str]) -> None:
        """`out`: the folder of --out; without it, the user's data folder."""
        self.command = "flagbench results push" + (" %s" % shlex.quote(out) if out else "")
        """Stores what waits, on a machine where the folder of --out has the name that it has here."""
        self.folder = out or os.path.join(_data_folder(), "unsent")
        self._meant_for, self._out = meant_for, out

    def keep_record(self, record_id: str, line: str) -> None:
        """Keep a record. Raises OSError, or CaseError (14)."""
        name = record_id + ".json"
        self._keep(name, lambda: output.write_file(self.folder, name, line))

    def keep_bundle(self, record_id: str, bundle: Bundle) -> None:
        """Keep a bundle. Raises OSError, or CaseError (14)."""
        name = _bundle_name(record_id, bundle)
        self._keep(name, lambda: place(bundle.path, os.path.join(self.folder, name)))

    def forget_record(self, record_id: str) -> None:
        """A record is stored. It stays where --out asks for it. A failure leaves it to be stored again."""
        self._forget(record_id + ".json", keep=self._out is not None)

    def forget_bundle(self, record_id: str, bundle: Bundle) -> None:
        """A bundle is stored. A failure leaves it to be stored again."""
        self._forget(_bundle_name(record_id, bundle))

    def _keep(self, name: str, write: Callable[[], object]) -> None:
        output.write_file(self.folder, name + MEANT_FOR, self._meant_for, replace=True, newline=False)
        try:
            write()
        except (CaseError, OSError):
            self._forget(name, keep=True)
            raise

    def _forget(self, name: str, keep: bool = False) -> None:
        path = os.path.join(self.folder, name)
        with contextlib.suppress(OSError):
            if not keep:
                with contextlib.suppress(FileNotFoundError):  # `flagbench results push` has stored it meanwhile
                    os.unlink(path)
            os.unlink(path + MEANT_FOR)


def _bundle_name(record_id: str, bundle: Bundle) -> str:
    """Its key in a store as the name of a file."""
    return ".".join(layout.bundle_key(record_id, bundle.node, bundle.sha256).split("/")[1:])


def _data_folder() -> str:
    """The folder of this user's data, as platformdirs has it on the host side."""
    base = os.environ.get("XDG_DATA_HOME", "").strip() or os.path.expanduser("~/.local/share")
    return os.path.join(base, "flagbench")
