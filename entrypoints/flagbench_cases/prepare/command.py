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
MAX_SHOWN_SOURCES = 6
"""Number of sources shown in a summary; some data sets have hundreds of files."""


def prepare_arguments(argv: list[str]) -> list[str] | None:
    """The arguments of `prepare CASE ...` or, as in an image, `CASE prepare ...`; None for a run."""
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
    """Convert or check; returns a summary or JSON. Raises CaseError."""
    lost = user_home.leave_removed_folder()
    arguments = prepare_parser().parse_args(argv)
    if lost:
        user_home.refuse_relative({name: getattr(arguments, name) for name in (*KINDS, "vocabulary", "out")})
    plan = plan_of(arguments)
    there = os.path.isdir(plan["out"])
    try:
        folders = child.run(plan, interruption, "the check" if arguments.check else "the preparation")
    except CaseError:
        for kind in KINDS:
            if plan[kind] is not None:
                remove_partial(plan["out"], kind)
        if not there:
            with contextlib.suppress(OSError):  # it was not made, or a finished folder is in it
                os.rmdir(plan["out"])
        raise
    # The paths known to the caller, and the command that uses them.
    shown = arguments.shown_as or arguments.out
    for kind, facts in folders.items():
        facts["folder"] = os.path.join(shown, kind)
    words = ["flagbench", "run", f"{plan['case']}:{os.environ.get('FLAGBENCH_STACK', 'cpu')}"]
    words += ["--data" if "data" in folders else "--weights", shown]
    result = {"case": plan["case"], "folders": folders, "run": " ".join(shlex.quote(word) for word in words)}
    return json.dumps(result, sort_keys=True) if arguments.json else summary(result, arguments.check)


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
    """What to do. Raises UsageError, and DataError for missing sources."""
    manifests.load_case(arguments.case)
    sources = {name: getattr(arguments, name) for name in (*KINDS, "vocabulary")}
    given = any(value is not None for value in sources.values())
    if arguments.check and (arguments.force or given):
        raise UsageError("--check writes nothing and takes no sources", "omit all other options except -o")
    if not arguments.out:
        raise UsageError("--out is missing", "give the folder for data/ and weights/: -o OUT")
    paths = {**sources, "out": arguments.out}
    for name, value in paths.items():
        if value is None:
            continue
        if "://" in value:
            raise UsageError(
                f"--{name} takes a path, not a URL",
                "give a path: download sources before, and upload what was prepared afterwards",
            )
        if not value or "\0" in value:
            raise UsageError(f"--{name} is not a valid path", "give a path")
        if name != "out" and not os.path.exists(value):
            raise DataError(f"--{name} {value} does not exist", "give the downloaded file or folder")
    return {
        "do": "check" if arguments.check else "prepare",
        "case": arguments.case,
        **{name: None if value is None else os.path.abspath(value) for name, value in paths.items()},
        "force": arguments.force,
    }


def summary(result: dict[str, Any], checked: bool) -> str:
    """The result as text: the folders, their sources and licences, and the command to run next."""
    lines = []
    for kind, made in sorted(result["folders"].items()):
        size = sum(facts["bytes"] for facts in made["files"].values())
        state = ", all checksums verified" if checked else ""
        words = (result["case"], kind, made["folder"], readable(size), len(made["files"]), state)
        lines += ["%s %s: %s, %s in %d files%s" % words, f"  format  {made['format']}"]
        lines += [f"  {name}  {_shorten(value)}" for name, value in sorted(made["facts"].items())]
        shown, more = made["sources"][:MAX_SHOWN_SOURCES], made["sources"][MAX_SHOWN_SOURCES:]
        lines += ["  from  %(name)s, %(bytes)d bytes, sha256 %(sha256)s" % source for source in shown]
        lines += [f"  from  {len(more)} more files, listed in prepared.json"] if more else []
        lines += [f"  digest  {made['digest']}", f"  licence  {made['licence'] or 'unknown'}"]
    lines.append(f"run it: {result['run']}")
    return "\n".join(printable(line) for line in lines)


def _shorten(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else text[:97] + "..."
