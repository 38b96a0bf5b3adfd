"""What a run's child processes are given of the environment."""

import json
import os
import subprocess
import sys

import pytest

import flagbench_cases

pytestmark = pytest.mark.image

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(flagbench_cases.__file__)))
SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from flagbench_cases.shared.interpreter import child_environment
print(json.dumps(child_environment()))
"""
SET = {"PYTHONHOME": "/x", "PYTHONINSPECT": "1", "PYTHONPATH": "/theirs", "PYTHONHASHSEED": "7", "OTHER": "stays"}


def seen(*flags, **environment):
    """What a Python started with these flags gives to its children; its own start is undisturbed."""
    script = "import os; os.environ.update(%r)\n%s" % (environment, SCRIPT)
    done = subprocess.run([sys.executable, *flags, "-c", script, ROOT], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def test_children_of_an_image_do_not_inherit_pythonhome():
    env = seen("-I", **SET)
    assert not {"PYTHONHOME", "PYTHONINSPECT"} & set(env)
    assert env["PYTHONPATH"] == os.pathsep.join([ROOT, "/theirs"])
    assert (env["PYTHONHASHSEED"], env["OTHER"]) == ("7", "stays")


def test_elsewhere_the_environment_is_inherited():
    """A Python that needs PYTHONHOME was started with it, and so are its children."""
    assert {name: value for name, value in seen(**SET).items() if name in SET} == {
        **SET,
        "PYTHONPATH": os.pathsep.join([ROOT, "/theirs"]),
    }
