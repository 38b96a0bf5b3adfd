"""The environment of the Pythons that a run starts: they find this package, and no variable stops them."""

import os
import sys
from typing import Dict

KEPT = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONHASHSEED", "PYTHONFAULTHANDLER", "PYTHONDONTWRITEBYTECODE")


def child_environment() -> Dict[str, str]:
    """A copy of this process's environment for another Python.

    An image's first process ignores Python's variables (`-I`): one that a user sets, such as PYTHONHOME, would keep
    it from starting, and there would be no record. Those are not for its children either, but for KEPT.
    """
    env = dict(os.environ)
    if sys.flags.ignore_environment:
        for name in [name for name in env if name.startswith("PYTHON") and name not in KEPT]:
            del env[name]
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    env["PYTHONPATH"] = os.pathsep.join(path for path in (root, env.get("PYTHONPATH")) if path)
    return env
