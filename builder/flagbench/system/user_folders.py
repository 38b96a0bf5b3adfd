"""The folders of this user: records and what waits to be stored, and the cache."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from platformdirs import user_cache_path, user_data_path

from flagbench.errors import FlagbenchError
from flagbench.system.files import reason
from flagbench_core.scratch import user_folder


def data_folder() -> Path:
    """The user's own folder."""
    return _own(user_data_path, "flagbench")


def cache_folder() -> Path:
    """`flagbench` in the platform's folder for caches, which is XDG_CACHE_HOME or ~/.cache."""
    return _own(user_cache_path, "cache")


def _own(find: Callable[[str], Path], name: str) -> Path:
    """A folder of the platform; for a user without a name and a home one in TMPDIR, as record/unsent.py has it.

    Raises FlagbenchError (usage) if there is none.
    """
    with suppress(RuntimeError):  # platformdirs: no home directory
        folder = find("flagbench")
        if folder.is_absolute():
            return folder
    try:
        return Path(user_folder()) / name
    except OSError as error:
        raise FlagbenchError(
            f"cannot use {error.filename} for lack of a home folder: {reason(error)}",
            remedy="set HOME to a folder of your own",
        ) from error
