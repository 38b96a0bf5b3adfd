"""Faults inside a rank of a real run: a line of Python that one rank executes at a point of its work."""

import os
from typing import Any, Dict

from running import ENTRYPOINTS

# The interpreter of every process of a run imports this as it starts; only the named rank does anything.
SITE = '''
import importlib.abc, importlib.machinery, os, sys

RANK, AT, ACTION = %r

class Finder(importlib.abc.MetaPathFinder):
    """Loads the spool with a RankSpool that does it at its phase or step."""

    def find_spec(self, name, path, target=None):
        if name != "flagbench_cases.shared.spool":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def loaded(module):
            load(module)
            phase, step = module.RankSpool.phase, module.RankSpool.step

            def entered(self, name, *total):
                if AT == "before " + name:
                    exec(ACTION)
                phase(self, name, *total)

            def taken(self, values):
                step(self, values)
                if AT == self._steps:
                    exec(ACTION)

            module.RankSpool.phase, module.RankSpool.step = entered, taken

        spec.loader.exec_module = loaded
        return spec

if os.environ.get("RANK") == str(RANK):
    if AT == "start":
        exec(ACTION)
    else:
        sys.meta_path.insert(0, Finder())
'''


def fault(folder: Any, rank: int, at: Any, action: str) -> Dict[str, str]:
    """The environment of a run whose rank does `action` as its interpreter starts (`start`), before it enters a phase
    (`before train`), or after it has taken so many steps (a number)."""
    site = os.path.join(str(folder), "site")
    os.makedirs(site)
    with open(os.path.join(site, "sitecustomize.py"), "w") as file:
        file.write(SITE % ((rank, at, action),))
    return {"PYTHONPATH": os.pathsep.join([site, ENTRYPOINTS])}
