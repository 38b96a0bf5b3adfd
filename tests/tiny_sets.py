"""The command line of the scripts that make a tiny set."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path


def main(description: str, make: Callable[[Path], None], differences: Callable[[], list[str]]) -> int:
    """`--out FOLDER` makes the set in a new folder, `--check` names shipped files that differ; returns the exit
    code."""
    parser = argparse.ArgumentParser(description=description)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="check that the shipped files are unchanged")
    action.add_argument("--out", type=Path, help="a new folder for the files")
    options = parser.parse_args()
    if options.check:
        wrong = differences()
        print("changed: %s" % ", ".join(wrong) if wrong else "unchanged")
        return 1 if wrong else 0
    if options.out.exists():
        parser.error("%s exists" % options.out)
    options.out.mkdir(parents=True)
    make(options.out)
    return 0
