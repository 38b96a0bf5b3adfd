"""The folders of this user: records and what waits to be stored, and copies of what is in buckets."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path, user_data_path

CACHE_VARIABLE = "FLAGBENCH_CACHE"


def data_folder() -> Path:
    """The user's own folder."""
    return user_data_path("flagbench")


def cache_folder() -> Path:
    """This user's cache: FLAGBENCH_CACHE, else `flagbench` in the platform's folder; as prepare/cache.py has it."""
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given).absolute() if given else user_cache_path("flagbench")
