"""Python's own settings: the environment of its child processes, and how often it collects garbage."""

from __future__ import annotations

import gc
import os
import sys

KEPT_VARIABLES = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONHASHSEED", "PYTHONFAULTHANDLER", "PYTHONDONTWRITEBYTECODE")
DEFAULT_THRESHOLDS = gc.get_threshold()
STARTING = 1_000_000
"""New objects between two garbage collections while a process starts.

torch and transformers create hundreds of thousands of objects when they are imported. With Python's 700, a quarter of
that time is spent on looking through them; with this number, nothing.
"""


def child_environment() -> dict[str, str]:
    """A copy of this process's environment for a Python child process.

    An image's first process ignores Python's variables (`-I`): one set by a user, such as PYTHONHOME, could keep it
    from starting, without a record. They are removed for its children too, except KEPT_VARIABLES.
    """
    env = dict(os.environ)
    if sys.flags.ignore_environment:
        for name in [name for name in env if name.startswith("PYTHON") and name not in KEPT_VARIABLES]:
            del env[name]
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    env["PYTHONPATH"] = os.pathsep.join(path for path in (root, env.get("PYTHONPATH")) if path)
    return env
