"""Faults inside a rank of a real run: Python that one rank, or each, executes at a point of its work."""

import os
from typing import Any, Dict, Optional

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

            def entered(self, name, *total, **more):
                if AT == "before " + name:
                    exec(ACTION, {**globals(), **locals()})
                phase(self, name, *total, **more)

            def taken(self, values):
                step(self, values)
                if AT == self._steps:
                    exec(ACTION, {**globals(), **locals()})

            module.RankSpool.phase, module.RankSpool.step = entered, taken

        spec.loader.exec_module = loaded
        return spec

if os.environ.get("RANK") == str(RANK) or (RANK is None and "RANK" in os.environ):
    if AT == "start":
        exec(ACTION, {**globals(), **locals()})
    else:
        sys.meta_path.insert(0, Finder())
'''


SLOW_STEP = """
import time
from flagbench_cases.rank import step_timer
def start(self, workload, run, *rest, fast=step_timer.StepTimer.__init__, **more):
    def slow(batch):
        if %r in (None, self.count):
            time.sleep(%r)
        return run(batch)
    fast(self, workload, slow, *rest, **more)
step_timer.StepTimer.__init__ = start
"""


def slow_rank(folder: Any, rank: int, seconds: float, step: Optional[int] = None) -> Dict[str, str]:
    """The environment of a run one rank of which takes so many seconds longer for its part of every step, or of one
    step, counted from 0."""
    return fault(folder, rank, "before data", SLOW_STEP % (step, seconds))


def fault(folder: Any, rank: Optional[int], at: Any, action: str) -> Dict[str, str]:
    """The environment of a run whose rank, or every one (None), does `action` as its interpreter starts (`start`),
    before it enters a phase (`before train`), or after it has taken so many steps (a number)."""
    site = os.path.join(str(folder), "site")
    os.makedirs(site)
    with open(os.path.join(site, "sitecustomize.py"), "w") as file:
        file.write(SITE % ((rank, at, action),))
    return {"PYTHONPATH": os.pathsep.join([site, ENTRYPOINTS])}
