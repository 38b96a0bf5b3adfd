"""Sets that a small generator writes and that are shipped: their command line, `--check` and `--out`."""

import argparse
import sys
from pathlib import Path
from typing import Dict, Optional, Sequence

from flagbench_cases.shared.errors import CaseError, DataError, ExitCode


def write(files: Dict[str, str], folder: Path) -> None:
    """Write the texts of `files`, by name, into `folder`, made if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_bytes(text.encode("utf-8"))


def check(files: Dict[str, str], folder: Path) -> None:
    """Raise DataError naming the files of `folder` that are missing or not what the generator writes."""
    differing = [
        name
        for name, text in files.items()
        if not (folder / name).is_file() or (folder / name).read_bytes() != text.encode("utf-8")
    ]
    if differing:
        raise DataError(
            "%s: not what the generator writes: %s" % (folder, ", ".join(differing)),
            "write the set again with --out, or undo the change to the generator",
        )


def main(what: str, files: Dict[str, str], folder: Path, arguments: Optional[Sequence[str]]) -> int:
    """The command line of the generator of `what`, whose shipped files lie in `folder`; returns the exit code."""
    parser = argparse.ArgumentParser(prog="generate", description=what)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="prove that the shipped files are the output")
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
