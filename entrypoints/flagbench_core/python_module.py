"""Starts a module in a Python process that imports nothing from the working directory.

`python -m` looks there first: a random.py, json.py or torch/ of the user would replace what a run imports. Python
3.11 has an option against that (-P). For older versions this file is the script to start; it leaves the path again.
"""

from __future__ import annotations

import os
import sys


def options(module: str) -> list[str]:
    """The words that have a Python interpreter run a module, to be followed by the module's own arguments."""
    if sys.version_info >= (3, 11):
        return ["-P", "-m", module]
    return [os.path.abspath(__file__), module]


if __name__ == "__main__":
    del sys.path[0], sys.argv[0]  # the folder of this file, and its name
    import runpy

    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
