"""Parts of the machine that runs lack, made for real, and the host tool in a process of its own.

Where the host tool itself is needed, Python 3.10 is: the image side's tests run on 3.8 without it.
"""

import contextlib
import os
import subprocess
import sys

import pytest

from running import ROOT, control_group
from warmup import warm

collect_ignore = (
    [
        *("test_run_command.py", "test_run_terminal.py", "test_docs_add_a_case.py", "test_prepare_command.py"),
        *("test_resume_split_model.py", "test_reproduce.py", "test_explain_runs.py", "test_accept.py"),
    ]
    if sys.version_info < (3, 10)
    else []
)


@pytest.fixture
def environment(tmp_path):
    """Both packages importable, and a store and a spool of this test's own."""
    (tmp_path / "spool").mkdir()
    store = "file://%s" % (tmp_path / "store")
    paths = os.pathsep.join(os.path.join(ROOT, name) for name in ("builder", "entrypoints"))
    return dict(os.environ, FLAGBENCH_STORE=store, TMPDIR=str(tmp_path / "spool"), NO_COLOR="1", **warm(paths))


@pytest.fixture
def flagbench(environment):
    """`flagbench(*arguments, **options of a process)`: the tool, ended."""

    def run(*arguments, **options):
        command = [*options.pop("command", [sys.executable, "-m", "flagbench"]), *arguments]
        options = {"env": environment, "capture_output": True, "text": True, "check": False, **options}
        return subprocess.run(command, **options)

    return run


@pytest.fixture
def limited():
    """`limited(controller, limit, *command)`: the command in a control group of this test's own."""
    with contextlib.ExitStack() as stack:
        yield lambda controller, limit, *command: [*stack.enter_context(control_group(controller, limit)), *command]
