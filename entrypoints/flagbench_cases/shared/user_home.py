"""A home folder for processes whose user has none: Kubernetes and OpenShift run images with arbitrary user ids.

Frameworks need a user name, and keep compiled kernels in the home folder; both fail for a user without passwd entry.
"""

from __future__ import annotations

import os
import pwd
from typing import Mapping, MutableMapping

from flagbench_cases.shared.errors import UsageError

# Cache folders of torch's compiler, Triton, the XDG default, Hugging Face's client, Matplotlib.
CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
    "TRITON_CACHE_DIR": "triton",
    "XDG_CACHE_HOME": "cache",
    "HF_HOME": "huggingface",
    "MPLCONFIGDIR": "matplotlib",
}
NOBODY = "flagbench"


def prepare(env: MutableMapping[str, str], folder: str) -> None:
    """Set a user name, home folder and cache folders below `folder` in `env`, where they are missing or not writable.

    Writable folders set in the environment are kept.
    """
    if not _has_name(os.getuid()):
        for variable in ("USER", "LOGNAME"):
            env[variable] = env.get(variable) or NOBODY
    homeless = not _writable(env.get("HOME"))
    if homeless:
        os.makedirs(folder, exist_ok=True)
        env["HOME"] = folder
    for variable, name in CACHES.items():
        missing = homeless
        if env.get(variable):
            missing = not _writable(env[variable])
        if missing:
            os.makedirs(folder, exist_ok=True)
            env[variable] = os.path.join(folder, name)


def _writable(folder: str | None) -> bool:
    """Whether a folder is writable, or can be created."""
    if not folder or not os.path.isabs(folder):
        return False
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)


def _has_name(uid: int) -> bool:
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
    """Raise UsageError for a path, by its option, that is relative to a missing working directory."""
    for option, path in paths.items():
        if path and not os.path.isabs(path) and "://" not in path:
            words = f"--{option} {path} is relative to the working directory, which was removed"
            raise UsageError(words, "change to an existing folder, or use absolute paths")
