"""Where this user's copies of what is in buckets are kept."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path

CACHE_VARIABLE = "FLAGBENCH_CACHE"


def cache_folder() -> Path:
    """This user's cache: FLAGBENCH_CACHE, else `flagbench` in the platform's folder; as prepare/cache.py has it."""
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given).absolute() if given else user_cache_path("flagbench")
