"""Results that wait until they are stored: kept before an upload begins, so that a kill loses nothing.

They wait in the folder of --out, which outlives a container, else in the user's data folder: `ID.json` and
`ID.node-K-SHA256.tar.gz`, each beside a file `.meant-for` that names the store. It is written first and removed last.
`flagbench results push` stores what it finds there.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from typing import Callable

from flagbench_cases.record.stores import Bundle, bundle_key, copy_bundle
from flagbench_cases.shared import output
from flagbench_cases.shared.errors import CaseError
from flagbench_core.exit_codes import ExitCode
from flagbench_core.scratch import user_folder
from flagbench_core.store_layout import ADDRESS_SUFFIX


class Unsent:
    """What one node keeps until it is stored."""

    def __init__(self, record_id: str, meant_for: str, out: str | None) -> None:
        """`out`: the folder of --out; without it, the user's data folder. Raises CaseError (14)."""
        self.command = "flagbench results push"
        """Stores what waits, on a machine where the folder of --out has the same name."""
        if out:
            self.command += f" {shlex.quote(out)}"
        self.folder = out or os.path.join(_data_folder(), "unsent")
        self._record_id, self._meant_for, self._out = record_id, meant_for, out

    def keep_record(self, line: str) -> str:
        """Keep a record; returns its path. Raises CaseError (14)."""
        name = self._record_id + ".json"
        return self._keep(name, lambda: output.write_file(self.folder, name, line))

    def keep_bundle(self, bundle: Bundle) -> str:
        """Keep a bundle; returns its path. Raises CaseError (14)."""
        name = _bundle_name(self._record_id, bundle)
        return self._keep(name, lambda: copy_bundle(bundle, os.path.join(self.folder, name)))

    def forget_record(self) -> None:
        """A record is stored. It stays where --out asks for it. A failure leaves it to be stored again."""
        self._forget(self._record_id + ".json", keep=self._out is not None)

    def forget_bundle(self, bundle: Bundle) -> None:
        """A bundle is stored. A failure leaves it to be stored again."""
        self._forget(_bundle_name(self._record_id, bundle))

    def _keep(self, name: str, write: Callable[[], str]) -> str:
        output.write_file(self.folder, name + ADDRESS_SUFFIX, self._meant_for, replace=True, newline=False)
        try:
            return write()
        except CaseError:
            self._forget(name, keep=True)
            raise

    def _forget(self, name: str, keep: bool = False) -> None:
        """`flagbench results push` may have stored and removed it meanwhile."""
        path = os.path.join(self.folder, name)
        paths = [path + ADDRESS_SUFFIX]
        if not keep:
            paths.insert(0, path)
        for path in paths:
            with contextlib.suppress(OSError):
                os.unlink(path)
        if self._out is None:
            with contextlib.suppress(OSError):  # something else waits in it
                os.rmdir(self.folder)


def _bundle_name(record_id: str, bundle: Bundle) -> str:
    """Its key in a store as the name of a file."""
    return ".".join(bundle_key(record_id, bundle).split("/")[1:])


def _data_folder() -> str:
    """The folder of this user's data, as platformdirs has it on the host side. Raises CaseError (14)."""
    base = os.environ.get("XDG_DATA_HOME", "").strip() or os.path.expanduser("~/.local/share")
    if os.path.isabs(base):
        return os.path.join(base, "flagbench")
    try:
        return os.path.join(user_folder(), "flagbench")
    except OSError as error:
        words = f"cannot use {error.filename} for lack of a home folder: {error.strerror}"
        raise CaseError(words, "set HOME to a folder of your own, or give --out", ExitCode.NOT_STORED) from error
