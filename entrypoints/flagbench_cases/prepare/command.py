"""`python -m flagbench_cases prepare CASE ...`: converts downloaded files into the folders that a run reads.

The conversion runs in a child process. This process supervises it, reports how it ended and removes partial output.
"""

import argparse
import contextlib
import json
import os
import shlex
import signal
import sys
from typing import Any, Dict, List, Optional

from flagbench_cases.prepare import bucket, child, destination
from flagbench_cases.prepare.child import MEMORY_REMEDY
from flagbench_cases.prepare.meter import printable
from flagbench_cases.prepare.writer import readable
from flagbench_cases.shared import config, output, processes, user_home
from flagbench_cases.shared.arguments import Parser
from flagbench_cases.shared.errors import CaseError, DataError, ExitCode, UsageError
from flagbench_cases.shared.files import KINDS
from flagbench_cases.shared.interruption import Interruption
from flagbench_cases.shared.redaction import redact

SUBCOMMAND = "prepare"
EXIT_SECONDS = 3.0
MAX_SHOWN_SOURCES = 6
"""Number of sources shown in a summary; some data sets have hundreds of files."""


def arguments_of(argv: List[str]) -> Optional[List[str]]:
    """The arguments of `prepare CASE ...`, or of `CASE prepare ...` as in an image; None for a run."""
    if argv[:1] == [SUBCOMMAND]:
        return argv[1:]
    return argv[:1] + argv[2:] if argv[1:2] == [SUBCOMMAND] and not argv[0].startswith("-") else None


def build_parser() -> Parser:
    """The argument parser of this command."""
    parser = Parser(
        prog="flagbench_cases prepare",
        description="Convert downloaded data and weights into the folders OUT/data and OUT/weights, which runs read.",
        epilog="Exit codes: 0 done, 2 usage, 3 data or weights, 5 out of memory, 7 interrupted, 14 the disk is full, "
        "15 network.",
        allow_abbrev=False,
    )
    parser.add_argument("case", help="one of: %s" % ", ".join(config.case_names()))
    parser.add_argument("--data", metavar="SRC", help="the downloaded data, a file or folder")
    parser.add_argument("--weights", metavar="SRC", help="the downloaded weights, a file or folder")
    parser.add_argument("--vocabulary", metavar="FILE", help="the tokenizer's file, if the data are text")
    parser.add_argument("-o", "--out", metavar="OUT", help="where to write data/ and weights/")
    parser.add_argument(
        "--to", metavar="URL", help="also upload what is prepared in OUT to a bucket, s3://BUCKET/PREFIX"
    )
    parser.add_argument("--check", action="store_true", help="verify all checksums of what is prepared in OUT")
    parser.add_argument("--force", action="store_true", help="replace what is prepared in OUT and in --to")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of a summary")
    parser.add_argument("--shown-as", metavar="OUT", help="the path of OUT outside of this container")
    return parser


def main(argv: List[str], interruption: Interruption) -> int:
    """Run `prepare` and return the exit code; prints a summary on stdout, progress and errors on stderr."""
    lost = user_home.leave_removed_folder()
    try:
        arguments = build_parser().parse_args(argv)
        if lost:
            user_home.refuse_relative({name: getattr(arguments, name) for name in (*KINDS, "vocabulary", "out")})
        plan = plan_of(arguments)
        result = carry_out(plan, interruption)
        printed = json.dumps(result, sort_keys=True) if arguments.json else summary(result, arguments.check)
        output.write_line(1, printed.encode("utf-8", "backslashreplace").decode("utf-8"), "the summary")
    except CaseError as error:
        sys.stderr.write("error: %s\nfix: %s\n" % (printable(redact(error.message)), printable(error.remedy)))
        sys.stderr.flush()
        return int(error.code)
    except KeyboardInterrupt:  # a second signal
        interruption.exit_within(EXIT_SECONDS, int(ExitCode.INTERRUPTED))
        processes.kill_all(os.getpid())
        sys.stderr.write("error: %s, twice\nfix: run again\n" % interruption.reason)
        return int(ExitCode.INTERRUPTED)
    return 0


def plan_of(arguments: argparse.Namespace) -> Dict[str, Any]:
    """What to do. Raises UsageError, and DataError for missing sources."""
    config.load_case(arguments.case)
    sources = {name: getattr(arguments, name) for name in (*KINDS, "vocabulary")}
    given = any(value is not None for value in sources.values())
    if arguments.check and (arguments.force or arguments.to or given):
        raise UsageError("--check writes nothing and takes no sources", "omit all other options except -o")
    if not arguments.out:
        raise UsageError("--out is missing", "give the folder for data/ and weights/: -o OUT")
    for name, value in [*sources.items(), ("out", arguments.out)]:
        if value is None:
            continue
        if "://" in value:
            raise UsageError("--%s takes a file or folder, not a URL" % name, "download it first")
        if not value or "\0" in value:
            raise UsageError("--%s is not a valid path" % name, "give a path")
        if name != "out" and not os.path.exists(value):
            raise DataError("--%s %s does not exist" % (name, value), "give the downloaded file or folder")
    if arguments.to is not None:
        bucket.open_bucket(arguments.to)  # for its errors; nothing is asked of it yet
    paths = {**sources, "out": arguments.out}
    return {
        **{name: None if value is None else os.path.abspath(value) for name, value in paths.items()},
        "case": arguments.case,
        "shown_as": arguments.shown_as or arguments.out,
        "force": arguments.force,
        "check": arguments.check,
        "to": arguments.to,
        "convert": given or (not arguments.check and not arguments.to),
    }


def carry_out(plan: Dict[str, Any], interruption: Interruption) -> Dict[str, Any]:
    """Convert or check, then upload; returns the result to print. Raises CaseError if something fails."""
    folders: Dict[str, Any] = {}
    if plan["convert"] or not plan["to"]:
        folders = convert(plan, interruption)
    if plan["to"]:
        folders = transfer({**plan, "kinds": list(folders)}, interruption)
    return _result(plan, folders)


def convert(plan: Dict[str, Any], interruption: Interruption) -> Dict[str, Any]:
    """Run the conversion or the check; returns the facts of the folders by kind. Raises CaseError if it fails."""
    there = os.path.isdir(plan["out"])
    ended = child.run("flagbench_cases.prepare.job", plan, interruption)
    if "results" not in ended.answer and not plan["check"]:
        _remove_partial(plan, there)
    if interruption:
        raise CaseError(interruption.reason, "no partial output was left; run again", ExitCode.INTERRUPTED)
    child.raise_failure(ended.answer)
    if "results" not in ended.answer:
        raise conversion_error(ended.code, ended.memory_killed)
    return dict(ended.answer["results"])


def transfer(plan: Dict[str, Any], interruption: Interruption) -> Dict[str, Any]:
    """Upload what is prepared; returns the facts of the folders. Raises CaseError."""
    ended = child.run("flagbench_cases.prepare.upload", plan, interruption)
    if interruption:
        raise CaseError(interruption.reason, "run again without sources to upload the rest", ExitCode.INTERRUPTED)
    child.raise_failure(ended.answer)
    if "results" not in ended.answer:
        raise child.died(ended, "the upload")
    return dict(ended.answer["results"])


def _remove_partial(plan: Dict[str, Any], there: bool) -> None:
    """Remove partial output of a conversion that failed, and OUT itself if it did not exist before."""
    for kind in KINDS:
        # If OUT is not writable or locked by another process, this one has written nothing.
        with contextlib.suppress(CaseError, OSError):
            if plan[kind] is not None and os.path.isdir(plan["out"]):
                with destination.lock(plan["out"], kind):
                    destination.remove_leftovers(plan["out"], kind)
    if not there:
        with contextlib.suppress(OSError):  # not empty: a finished folder, or another process's output
            os.rmdir(plan["out"])


def conversion_error(code: int, memory_killed: bool) -> CaseError:
    """The error for a conversion that reported nothing, from its exit code."""
    if code == -signal.SIGKILL:
        words = "the conversion was killed" + (" by the kernel's OOM killer" if memory_killed else "")
        remedy = MEMORY_REMEDY if memory_killed else MEMORY_REMEDY + "; the kernel log lists kills by the kernel"
        return CaseError(words, remedy, ExitCode.OUT_OF_MEMORY)
    if code in (-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP):
        words = "the conversion was ended by %s" % signal.Signals(-code).name
        return CaseError(words, "no partial output was left; run again", ExitCode.INTERRUPTED)
    if code == -signal.SIGBUS:
        words = "the conversion could not access a mapped file: a source was truncated, or the disk is full"
        return DataError(words, "free disk space, make sure that the sources do not change, and run again")
    if code < 0:
        words = "a source crashed the library that reads it (%s)" % processes.describe_exit(code)
        return DataError(words, "download the source again: it is damaged or malicious")
    return CaseError("the conversion ended with exit %d" % code, "report it with the output above", ExitCode.BUG)


def _result(plan: Dict[str, Any], folders: Dict[str, Any]) -> Dict[str, Any]:
    """The result for --json: the folders, with the paths known to the caller, and the command that uses them."""
    shown = plan["shown_as"]
    for kind, facts in folders.items():
        if shown is not None:
            facts["folder"] = os.path.join(shown, kind) if facts["folder"] != plan["out"] else shown
    words = ["flagbench", "run", "%s:%s" % (plan["case"], os.environ.get("FLAGBENCH_STACK", "cpu"))]
    words += ["--data" if "data" in folders else "--weights", plan["to"] or shown]
    run = " ".join(shlex.quote(word) for word in words)
    return {"case": plan["case"], "folders": folders, "run": run}


def summary(result: Dict[str, Any], checked: bool) -> str:
    """The result as text: the folders, their sources and licences, and the command to run next."""
    lines = []
    for kind, made in sorted(result["folders"].items()):
        size = sum(facts["bytes"] for facts in made["files"].values())
        head = "%s %s: %s, %s in %d files" % (
            result["case"],
            kind,
            made["folder"],
            readable(size),
            len(made["files"]),
        )
        lines += [head + (", all checksums verified" if checked else ""), "  format  %s" % made["format"]]
        lines += ["  uploaded to  %s" % made["url"]] if "url" in made and not checked else []
        lines += ["  %s  %s" % (name, _shorten(value)) for name, value in sorted(made["facts"].items())]
        shown, more = made["sources"][:MAX_SHOWN_SOURCES], made["sources"][MAX_SHOWN_SOURCES:]
        lines += ["  from  %(name)s, %(bytes)d bytes, sha256 %(sha256)s" % source for source in shown]
        lines += ["  from  %d more files, listed in prepared.json" % len(more)] if more else []
        lines += ["  digest  %s" % made["digest"], "  licence  %s" % (made["licence"] or "unknown")]
    lines.append("run it: %s" % result["run"])
    return "\n".join(printable(line) for line in lines)


def _shorten(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else text[:97] + "..."
