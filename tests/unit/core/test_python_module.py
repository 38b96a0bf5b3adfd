"""A module of ours is started as `python -m` would, but without the working directory on its path."""

import os
import subprocess
import sys

import pytest

from flagbench_core import python_module

pytestmark = pytest.mark.image

CODE = "import json, random, sys\nprint(json.dumps([sys.argv[1:], __name__, random.random() < 1]))\n"


@pytest.mark.parametrize("script", [False, True], ids=["option", "script"])
def test_modules_of_the_working_directory_are_not_imported(tmp_path, script):
    """The script stands for the option of Python 3.11."""
    here = tmp_path / "here"
    there = tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    (there / "started.py").write_text(CODE)
    for name in ("random", "json", "platform", "types", "runpy", "os"):
        (here / (name + ".py")).write_text("raise SystemExit(9)")
    options = [python_module.__file__, "started"] if script else python_module.options("started")
    env = dict(os.environ, PYTHONPATH=str(there))
    printed = subprocess.check_output([sys.executable, *options, "a", "-b"], cwd=str(here), env=env)
    assert printed == b'[["a", "-b"], "__main__", true]\n'
