"""The command `prepare CASE ...` of `python -m flagbench_cases`.

It converts downloaded files into the folders that a run reads, or checks such folders. The work is done by a child
process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import sys
from typing import Any

from flagbench_cases.prepare import child
from flagbench_cases.prepare.progress import printable, readable
from flagbench_cases.prepare.writer import remove_partial
from flagbench_cases.shared import manifests, output, processes, user_home
from flagbench_cases.shared.arguments import Parser, command_name
from flagbench_cases.shared.errors import CaseError, DataError, UsageError
from flagbench_cases.shared.files import KINDS
from flagbench_cases.shared.interruption import Interruption
from flagbench_cases.shared.redaction import redact
from flagbench_core.exit_codes import ExitCode

EXIT_SECONDS = 3.0
"""The time in which the process ends after a second signal, whatever it waits for."""
MAX_SHOWN_SOURCES = 6
"""Most sources shown in a summary; some data sets have hundreds of files."""
MAX_FACT_LENGTH = 100
"""Most characters of a fact shown in a summary, so that it fits on a line."""


def prepare_arguments(argv: list[str]) -> list[str] | None:
    """Return the arguments of `prepare CASE ...` or, as in an image, `CASE prepare ...`; None for a run."""
    if argv[:1] == ["prepare"]:
        return argv[1:]
    if argv[1:2] == ["prepare"] and not argv[0].startswith("-"):
        return argv[:1] + argv[2:]
    return None


def main(argv: list[str], interruption: Interruption) -> int:
    """Run the command and return the exit code; prints its result on stdout, progress and errors on stderr."""
    try:
        printed = prepare(argv, interruption)
        output.write_line(1, printed.encode("utf-8", "backslashreplace").decode("utf-8"), "the summary")
    except CaseError as error:
        sys.stderr.write(f"error: {printable(redact(error.message))}\nfix: {printable(error.remedy)}\n")
        sys.stderr.flush()
        return int(error.code)
    except KeyboardInterrupt:  # a second signal
        interruption.exit_within(EXIT_SECONDS, int(ExitCode.INTERRUPTED))
        processes.kill_all(os.getpid())
        sys.stderr.write(f"error: {interruption.reason}, twice\nfix: run again\n")
        return int(ExitCode.INTERRUPTED)
    return 0


def prepare(argv: list[str], interruption: Interruption) -> str:
    """Convert or check; returns the text to print, a summary or a line of JSON. Raises CaseError."""
    folder_was_removed = user_home.leave_removed_folder()
    arguments = prepare_parser().parse_args(argv)
    if folder_was_removed:
        user_home.refuse_relative({name: getattr(arguments, name) for name in (*KINDS, "vocabulary", "out")})
    plan = plan_of(arguments)
    folders = _carry_out(plan, interruption)
    # In a container, the user knows OUT by its path on the host.
    out = arguments.shown_as or arguments.out
    for kind, facts in folders.items():
        facts["folder"] = os.path.join(out, kind)
    stack = os.environ.get("FLAGBENCH_STACK", "cpu")
    option = "--data" if "data" in folders else "--weights"
    words = ["flagbench", "run", f"{plan['case']}:{stack}", option, out]
    result = {"case": plan["case"], "folders": folders, "run": " ".join(map(shlex.quote, words))}
    if arguments.json:
        return json.dumps(result, sort_keys=True)
    return summary(result, arguments.check)


def _carry_out(plan: dict[str, Any], interruption: Interruption) -> dict[str, Any]:
    """Have a child process carry out the plan; returns the facts of each prepared folder, by kind.

    Raises CaseError, and leaves no partial output.
    """
    existed = os.path.isdir(plan["out"])
    doing = "the check" if plan["do"] == "check" else "the preparation"
    try:
        return child.run(plan, interruption, doing)
    except CaseError:
        for kind in KINDS:
            if plan[kind] is not None:
                remove_partial(plan["out"], kind)
        if not existed:
            with contextlib.suppress(OSError):  # it was not created, or contains a finished folder
                os.rmdir(plan["out"])
        raise


def prepare_parser() -> Parser:
    """The argument parser of `prepare`."""
    parser = Parser(
        prog=f"{command_name()} prepare",
        description="Convert downloaded data and weights into the folders OUT/data and OUT/weights, which runs read.",
        epilog="Exit codes: 0 done, 2 usage, 3 data or weights, 5 out of memory, 7 interrupted, 14 the disk is full.",
        allow_abbrev=False,
    )
    parser.add_case()
    parser.add_argument("--data", metavar="SRC", help="the downloaded data, a file or folder")
    parser.add_argument("--weights", metavar="SRC", help="the downloaded weights, a file or folder")
    parser.add_argument("--vocabulary", metavar="FILE", help="the tokenizer's file, if the data are text")
    parser.add_argument("-o", "--out", metavar="OUT", help="where to write data/ and weights/")
    parser.add_argument("--check", action="store_true", help="verify all checksums of what is prepared in OUT")
    parser.add_argument("--force", action="store_true", help="replace what was prepared in OUT before")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of a summary")
    parser.add_argument("--shown-as", metavar="OUT", help="the path of OUT outside of this container")
    return parser


def plan_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the plan of what the arguments ask for, whose shape child.py describes.

    Raises UsageError, and DataError for missing sources.
    """
    manifests.load_case(arguments.case)
    paths = {name: getattr(arguments, name) for name in (*KINDS, "vocabulary")}
    has_source = any(path is not None for path in paths.values())
    if arguments.check and (arguments.force or has_source):
        raise UsageError("--check writes nothing and takes no sources", "omit all other options except -o")
    if not arguments.out:
        raise UsageError("--out is missing", "give the folder for data/ and weights/: -o OUT")
    paths["out"] = arguments.out
    plan: dict[str, Any] = {
        "do": "check" if arguments.check else "prepare",
        "case": arguments.case,
        "force": arguments.force,
    }
    for name, path in paths.items():
        plan[name] = None
        if path is not None:
            _check_path(name, path)
            plan[name] = os.path.abspath(path)
    return plan


def _check_path(option: str, path: str) -> None:
    """Raise UsageError for an option that is not a path, and DataError for a source that does not exist."""
    if "://" in path:
        raise UsageError(
            f"--{option} takes a path, not a URL",
            "give a path: download sources before, and upload what was prepared afterwards",
        )
    if not path or "\0" in path:
        raise UsageError(f"--{option} is not a valid path", "give a path")
    if option != "out" and not os.path.exists(path):
        raise DataError(f"--{option} {path} does not exist", "give the downloaded file or folder")


def summary(result: dict[str, Any], checked: bool) -> str:
    """Return the result as text: the folders, their sources and licences, and the command to run next."""
    lines = []
    for kind, folder in sorted(result["folders"].items()):
        files = folder["files"]
        size = readable(sum(facts["bytes"] for facts in files.values()))
        state = ", all checksums verified" if checked else ""
        lines.append(f"{result['case']} {kind}: {folder['folder']}, {size} in {len(files)} files{state}")
        lines.append(f"  format  {folder['format']}")
        for name, fact in sorted(folder["facts"].items()):
            lines.append(f"  {name}  {_shorten(fact)}")
        for source in folder["sources"][:MAX_SHOWN_SOURCES]:
            lines.append(f"  from  {source['name']}, {source['bytes']} bytes, sha256 {source['sha256']}")
        hidden = len(folder["sources"]) - MAX_SHOWN_SOURCES
        if hidden > 0:
            lines.append(f"  from  {hidden} more files, listed in prepared.json")
        lines.append(f"  digest  {folder['digest']}")
        lines.append(f"  licence  {folder['licence'] or 'unknown'}")
    lines.append(f"run it: {result['run']}")
    return "\n".join(printable(line) for line in lines)


def _shorten(fact: Any) -> str:
    """Return a fact, text or another JSON value, as text of at most MAX_FACT_LENGTH characters."""
    text = fact
    if not isinstance(fact, str):
        text = json.dumps(fact, ensure_ascii=False)
    if len(text) > MAX_FACT_LENGTH:
        return text[: MAX_FACT_LENGTH - len("...")] + "..."
    return text
