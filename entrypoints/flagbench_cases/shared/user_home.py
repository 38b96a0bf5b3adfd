"""Sets environment variables so that libraries find a user name and a writable home folder.

Kubernetes and OpenShift run images with arbitrary user ids, which have no entry in /etc/passwd. Frameworks fail
without a user name, and without a home folder in which they keep compiled kernels.
"""

from __future__ import annotations

import os
import pwd
from typing import Mapping, MutableMapping

from flagbench_cases.shared.errors import UsageError

CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
    "TRITON_CACHE_DIR": "triton",
    "XDG_CACHE_HOME": "cache",
    "HF_HOME": "huggingface",
    "MPLCONFIGDIR": "matplotlib",
}
"""The variables that name cache folders, each with the name of the folder that takes its place.

They are those of torch's compiler, Triton, the XDG standard, Hugging Face's client and Matplotlib.
"""
NOBODY = "flagbench"
"""The name of a user who has none."""


def prepare(env: MutableMapping[str, str], folder: str) -> None:
    """Set a user name, the home folder and the cache folders in `env`, if they are missing or not writable.

    Cache folders that are not set are below the home folder, so they are only set if that is replaced. `folder` is
    the new home folder, which is created if it is needed.
    """
    if not _has_name(os.getuid()):
        for variable in ("USER", "LOGNAME"):
            env[variable] = env.get(variable) or NOBODY
    needs_home = not _is_writable(env.get("HOME"))
    if needs_home:
        os.makedirs(folder, exist_ok=True)
        env["HOME"] = folder
    for variable, name in CACHES.items():
        needs_cache = needs_home
        if env.get(variable):
            needs_cache = not _is_writable(env[variable])
        if needs_cache:
            os.makedirs(folder, exist_ok=True)
            env[variable] = os.path.join(folder, name)


def _is_writable(folder: str | None) -> bool:
    """Whether a folder is writable or can be created; False for a path that is empty or relative."""
    if not folder or not os.path.isabs(folder):
        return False
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)


def _has_name(uid: int) -> bool:
    """Whether a user has an entry in /etc/passwd."""
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def leave_removed_folder() -> bool:
    """Change to / if the working directory was removed, since libraries fail without one. Returns whether it was."""
    try:
        os.getcwd()
    except FileNotFoundError:
        os.chdir("/")
        return True
    return False


def refuse_relative(paths: Mapping[str, str | None]) -> None:
    """Raise UsageError if a path is relative, since the working directory was removed. `paths` has them by option."""
    for option, path in paths.items():
        if path and not os.path.isabs(path) and "://" not in path:
            words = f"--{option} {path} is relative to the working directory, which was removed"
            raise UsageError(words, "change to an existing folder, or use absolute paths")
