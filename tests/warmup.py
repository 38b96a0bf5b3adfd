"""Runs that share one warmed-up process, where their isolation is not what a test is about.

Nearly all that a short run costs is importing torch, once for each of its processes: `tests/warm` has them continued
by copies of one process that has imported it. Tests of signals, of what a process may use and of how it starts do
without.
"""

import atexit
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from typing import Dict, Set

WARM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "warm")
WORKER = " ".join(map(shlex.quote, (sys.executable, os.path.join(WARM, "worker.py"))))
"""What starts a worker of pytest-xdist as a copy, as a command line."""
SOCKET = "FLAGBENCH_TEST_WARM_SOCKET"
"""Names the server's socket to every worker of a session."""
STARTED: Set[int] = set()
"""The servers of this process, which stay until it ends."""


def start() -> None:
    """Start the session's server, which imports nothing until it is asked, and kill it at the end of this process."""
    folder = tempfile.mkdtemp(prefix="flagbench-warm-")
    os.environ[SOCKET] = os.path.join(folder, "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(os.environ[SOCKET])
        server.listen(64)
        command = [sys.executable, "-u", os.path.join(WARM, "server.py"), str(server.fileno())]
        process = subprocess.Popen(command, pass_fds=[server.fileno()])
    STARTED.add(process.pid)
    creator = os.getpid()

    def end() -> None:
        if os.getpid() == creator:
            process.kill()
            process.wait()
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)


def warm(python_path: str) -> Dict[str, str]:
    """What to set in the environment of a run, whose own PYTHONPATH is given, so that it is warmed up; outside of a
    session of tests, as in the scripts that update golden files, only that path."""
    if SOCKET not in os.environ:
        return {"PYTHONPATH": python_path}
    return {"PYTHONPATH": os.pathsep.join((WARM, python_path)), "FLAGBENCH_TEST_WARM": os.environ[SOCKET]}
