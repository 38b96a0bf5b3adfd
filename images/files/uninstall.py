"""Uninstalls from a base's own Python the packages that a build is going to install there.

    uninstall.py            those of the requirements files beside it
    uninstall.py WHEEL...   those of these wheels

A package without a list of its files (RECORD), as conda and distributions install them, cannot be uninstalled. It
stays, and `pip install --ignore-installed` overwrites it or goes before it on the path. Its metadata is removed from
the folder that pip installs into: otherwise there would be two versions to read.

Runs on Python 3.8 and later with the standard library alone.
"""

import glob
import os
import re
import shutil
import site
import subprocess
import sys
from importlib import metadata

HERE = os.path.dirname(os.path.abspath(__file__))


def canonical(name):
    """A package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def required():
    """Canonical names of the packages in the requirements files, which have lines of `name==version`."""
    names = set()
    for path in glob.glob(os.path.join(HERE, "requirements.*")):
        with open(path, encoding="utf-8") as file:
            names |= {canonical(line.partition("==")[0]) for line in file if "==" in line}
    return names


def main(wheels):
    """Uninstall; returns pip's exit code."""
    wanted = {canonical(os.path.basename(path).partition("-")[0]) for path in wheels} or required()
    folder = site.getsitepackages()[0]
    listed = set()
    for distribution in list(metadata.distributions()):
        name = canonical(distribution.metadata["Name"] or "")
        if name not in wanted:
            continue
        place = str(distribution._path)
        if distribution.read_text("RECORD") is not None:
            listed.add(name)
        elif os.path.dirname(place) == folder and os.path.isdir(place):
            shutil.rmtree(place)
        elif os.path.dirname(place) == folder:
            os.remove(place)
    if not listed:
        return 0
    environment = dict(os.environ, PIP_BREAK_SYSTEM_PACKAGES="1", PIP_ROOT_USER_ACTION="ignore")
    command = [sys.executable, "-m", "pip", "uninstall", "-q", "-y", *sorted(listed)]
    return subprocess.run(command, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
