"""The folders of this user: one for records, stored or waiting to be, and one for caches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from platformdirs import user_cache_path, user_data_path

from flagbench.errors import FlagbenchError
from flagbench.system.files import reason
from flagbench_core.scratch import user_folder


def data_folder() -> Path:
    """`flagbench` in the platform's folder for data, which is XDG_DATA_HOME or ~/.local/share."""
    return _find_user_folder(user_data_path, "flagbench")


def cache_folder() -> Path:
    """`flagbench` in the platform's folder for caches, which is XDG_CACHE_HOME or ~/.cache."""
    return _find_user_folder(user_cache_path, "cache")


def _find_user_folder(find: Callable[[str], Path], fallback_name: str) -> Path:
    """The folder that `find` of platformdirs returns for flagbench.

    For a user without a name and a home, as in many containers, it is `fallback_name` in the user's folder in TMPDIR.
    The image side, record/unsent.py, uses the same one. Raises FlagbenchError (USAGE) if that cannot be used either.
    """
    with suppress(RuntimeError):  # platformdirs: no home directory
        folder = find("flagbench")
        if folder.is_absolute():
            return folder
    try:
        return Path(user_folder()) / fallback_name
    except OSError as error:
        raise FlagbenchError(
            f"cannot use {error.filename} for lack of a home folder: {reason(error)}",
            remedy="set HOME to a folder of your own",
        ) from error
