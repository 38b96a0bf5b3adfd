"""Runs that share one warmed-up process, where their isolation is not what a test is about.

Nearly all that a short run costs is importing torch, once for each of its processes: `tests/warm` has them continued
by copies of one process that has imported it. Tests of signals, of what a process may use and of how it starts do
without.
"""

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Dict, Set

WARM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "warm")
SECONDS = 180
STARTED: Set[int] = set()
"""The servers of this process, which stay until it ends."""


@functools.lru_cache(maxsize=None)
def _server(creator: int) -> str:
    """The socket of a server of this process's own, started the first time."""
    folder = tempfile.mkdtemp(prefix="flagbench-warm-")
    path = os.path.join(folder, "socket")
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    process = subprocess.Popen([sys.executable, "-u", os.path.join(WARM, "server.py"), path], env=environment)
    STARTED.add(process.pid)

    def end() -> None:
        if os.getpid() == creator:
            process.kill()
            process.wait()
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    deadline = time.monotonic() + SECONDS
    while not os.path.exists(path):
        assert process.poll() is None, "the warmed-up process ended with %s" % process.returncode
        assert time.monotonic() < deadline, "the warmed-up process did not answer in %d s" % SECONDS
        time.sleep(0.02)
    return path


def warm(python_path: str) -> Dict[str, str]:
    """What to set in the environment of a run, whose own PYTHONPATH is given, so that it is warmed up."""
    return {"PYTHONPATH": os.pathsep.join((WARM, python_path)), "FLAGBENCH_TEST_WARM": _server(os.getpid())}
