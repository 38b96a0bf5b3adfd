"""The command line of the generators of shipped data sets: `--check` and `--out`."""

import argparse
import sys
from pathlib import Path
from typing import Dict, Optional, Sequence

from flagbench_cases.shared.errors import CaseError, DataError
from flagbench_core.exit_codes import ExitCode


def write(files: Dict[str, str], folder: Path) -> None:
    """Write `files` (texts by name) into `folder`, creating it if necessary."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_bytes(text.encode("utf-8"))


def check(files: Dict[str, str], folder: Path) -> None:
    """Raise DataError naming the files in `folder` that are missing or differ from the generator's output."""
    differing = [
        name
        for name, text in files.items()
        if not (folder / name).is_file() or (folder / name).read_bytes() != text.encode("utf-8")
    ]
    if differing:
        raise DataError(
            "%s: these files differ from the generator's output: %s" % (folder, ", ".join(differing)),
            "regenerate the set with --out, or undo the change to the generator",
        )


def main(what: str, files: Dict[str, str], folder: Path, arguments: Optional[Sequence[str]]) -> int:
    """The command line of the generator of `what`, whose shipped files are in `folder`; returns the exit code."""
    parser = argparse.ArgumentParser(prog="generate", description=what)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="verify that the shipped files are up to date")
    action.add_argument("--out", type=Path, metavar="DIR", help="write %s here" % ", ".join(sorted(files)))
    options = parser.parse_args(arguments)
    try:
        if options.check:
            check(files, folder)
        else:
            write(files, options.out)
    except CaseError as error:
        print("%s\n%s" % (error.message, error.remedy), file=sys.stderr)
        return int(error.code)
    return int(ExitCode.OK)
