"""Keeps results on disk until they are stored. They are kept before an upload begins, so that a kill loses nothing.

They are kept in the folder of --out, which outlives a container, or else in the folder `unsent` of the user's data:
a record as `ID.json`, and the bundle of node K as `ID.node-K-SHA256.tar.gz`. Next to each file is one with the same
name and the suffix `.meant-for`, which has the address of the store. That one is written first and removed last, so
that each kept result has an address. `flagbench results push` stores the results that it finds in such a folder.
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
    """The results of one node that are kept until they are stored."""

    def __init__(self, record_id: str, meant_for: str, out: str | None) -> None:
        """Choose the folder. Raises CaseError (NOT_STORED) if there is no --out and no folder of the user's data.

        Args:
            record_id: the id of the run's record.
            meant_for: the address of the store: an s3:// URL, as --store takes it.
            out: the folder of --out; None for the user's data folder.
        """
        self.command = "flagbench results push"
        """The command that stores the results, on a machine where the folder of --out has the same name."""
        if out:
            self.command += f" {shlex.quote(out)}"
        self.folder = out or os.path.join(_data_folder(), "unsent")
        """The folder of the kept results."""
        self._record_id = record_id
        self._meant_for = meant_for
        self._out = out

    def keep_record(self, line: str) -> str:
        """Keep a record; returns its path. Raises CaseError (NOT_STORED)."""
        name = self._record_id + ".json"
        return self._keep(name, lambda: output.write_file(self.folder, name, line))

    def keep_bundle(self, bundle: Bundle) -> str:
        """Keep a bundle; returns its path. Raises CaseError (NOT_STORED)."""
        name = _bundle_name(self._record_id, bundle)
        return self._keep(name, lambda: copy_bundle(bundle, os.path.join(self.folder, name)))

    def forget_record(self) -> None:
        """Remove a record that has been stored, except from the folder of --out, where it was asked for.

        A failure is ignored: the record is then stored again, which changes nothing.
        """
        name = self._record_id + ".json"
        if self._out is None:
            self._remove([name, name + ADDRESS_SUFFIX])
        else:
            self._remove([name + ADDRESS_SUFFIX])

    def forget_bundle(self, bundle: Bundle) -> None:
        """Remove a bundle that has been stored, also from the folder of --out: only --bundle asks for one to stay.

        A failure is ignored, as for a record.
        """
        name = _bundle_name(self._record_id, bundle)
        self._remove([name, name + ADDRESS_SUFFIX])

    def _keep(self, name: str, write: Callable[[], str]) -> str:
        """Write the address of the store, then call `write` to write the file, and return its path."""
        output.write_file(self.folder, name + ADDRESS_SUFFIX, self._meant_for, replace=True, newline=False)
        try:
            return write()
        except CaseError:
            self._remove([name + ADDRESS_SUFFIX])
            raise

    def _remove(self, names: list[str]) -> None:
        """Remove files of the folder, and the folder itself if it is not that of --out and is empty then.

        Files may be missing: `flagbench results push` may have removed them meanwhile.
        """
        for name in names:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.folder, name))
        if self._out is None:
            with contextlib.suppress(OSError):  # other results are in the folder
                os.rmdir(self.folder)


def _bundle_name(record_id: str, bundle: Bundle) -> str:
    """Return the name of a bundle's file: its key in a store without the first folder, and dots for slashes."""
    return ".".join(bundle_key(record_id, bundle).split("/")[1:])


def _data_folder() -> str:
    """Return the folder of this user's data, the one that platformdirs returns on the host side.

    Raises CaseError (NOT_STORED) if this user has none.
    """
    base = os.environ.get("XDG_DATA_HOME", "").strip() or os.path.expanduser("~/.local/share")
    if os.path.isabs(base):
        return os.path.join(base, "flagbench")
    try:
        return os.path.join(user_folder(), "flagbench")
    except OSError as error:
        message = f"cannot use {error.filename} for lack of a home folder: {error.strerror}"
        raise CaseError(message, "set HOME to a folder of your own, or give --out", ExitCode.NOT_STORED) from error
