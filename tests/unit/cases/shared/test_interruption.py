"""Signals that a process is started with: ignored, held back, or handled by what Python does not know."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from running import ENTRYPOINTS

pytestmark = pytest.mark.image

KILLED_CHILD = """
import subprocess, sys
from flagbench_cases.shared.interruption import Interruption
with Interruption():
    print(subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]).wait())
"""
ASKED = """
import os, signal
from flagbench_cases.shared.interruption import Interruption
with Interruption() as interruption:
    os.kill(os.getpid(), signal.SIGTERM)
    print(interruption.number)
"""
# Two requests to stop at the first import of anything but what notes signals, no copies of each other.
STOPPED_TWICE = """
import os, runpy, signal, sys

class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == "flagbench_cases.%s":
            import flagbench_cases.shared.interruption as interruption
            interruption.COPY_SECONDS = -1.0
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Stop())
runpy.run_module("flagbench_cases", run_name="__main__", alter_sys=True)
"""


def run(script: str, *words: str, before: Callable[[], object] | None = None) -> subprocess.CompletedProcess[str]:
    env = dict(os.environ, PYTHONPATH=ENTRYPOINTS)
    command = [sys.executable, "-c", script, *words]
    return subprocess.run(command, env=env, preexec_fn=before, capture_output=True, text=True, timeout=60)


def test_the_end_of_a_child_is_known_where_sigchld_is_ignored() -> None:
    done = run(KILLED_CHILD, before=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    assert done.stdout == "-9\n", done.stderr


def test_a_request_to_stop_comes_where_the_caller_holds_it_back() -> None:
    done = run(ASKED, before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}))
    assert done.stdout == "%d\n" % signal.SIGTERM, done.stderr


def test_a_handler_that_python_does_not_know_is_no_bug() -> None:
    """faulthandler's, in a development image."""
    env = dict(os.environ, PYTHONPATH=ENTRYPOINTS, PYTHONFAULTHANDLER="1")
    command = [sys.executable, "-m", "flagbench_cases", "distilbert", "--describe"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("module", ["shared.stdio", "node.main"])
def test_a_second_signal_during_the_imports_is_an_interruption(module: str) -> None:
    done = run(STOPPED_TWICE % module, "distilbert")
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")
