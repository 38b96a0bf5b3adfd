"""The environment of Python child processes: this package is importable, and harmful variables are removed."""

import os
import sys
from typing import Dict

KEPT = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONHASHSEED", "PYTHONFAULTHANDLER", "PYTHONDONTWRITEBYTECODE")


def child_environment() -> Dict[str, str]:
    """A copy of this process's environment for a Python child process.

    An image's first process ignores Python's variables (`-I`): one set by a user, such as PYTHONHOME, could keep it
    from starting, without a record. They are removed for its children too, except KEPT.
    """
    env = dict(os.environ)
    if sys.flags.ignore_environment:
        for name in [name for name in env if name.startswith("PYTHON") and name not in KEPT]:
            del env[name]
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    env["PYTHONPATH"] = os.pathsep.join(path for path in (root, env.get("PYTHONPATH")) if path)
    return env
