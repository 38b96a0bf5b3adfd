"""`python -m flagbench_cases fetch CASE --data URL`: fetches prepared folders from a bucket into the cache.

A run does this by itself; the host does it before it mounts the folders into a container.
"""

import json
import os
import sys
from typing import Dict, List, Optional

from flagbench_cases.prepare import remote
from flagbench_cases.prepare.meter import printable
from flagbench_cases.prepare.remote import Fetched
from flagbench_cases.prepare.writer import readable
from flagbench_cases.shared import config, output, processes
from flagbench_cases.shared.arguments import Parser
from flagbench_cases.shared.errors import CaseError, ExitCode, UsageError
from flagbench_cases.shared.interruption import Interruption
from flagbench_cases.shared.redaction import redact

SUBCOMMAND = "fetch"
EXIT_SECONDS = 3.0


def arguments_of(argv: List[str]) -> Optional[List[str]]:
    """The arguments of `fetch CASE ...`, or of `CASE fetch ...` as in an image; None for anything else."""
    if argv[:1] == [SUBCOMMAND]:
        return argv[1:]
    return argv[:1] + argv[2:] if argv[1:2] == [SUBCOMMAND] and not argv[0].startswith("-") else None


def build_parser() -> Parser:
    """The argument parser of this command."""
    parser = Parser(
        prog="flagbench_cases fetch",
        description="Fetch prepared data and weights from a bucket into the cache ($FLAGBENCH_CACHE), as a run does.",
        epilog="Exit codes: 0 done, 2 usage, 3 data or weights, 5 out of memory, 7 interrupted, 15 network.",
        allow_abbrev=False,
    )
    parser.add_argument("case", help="one of: %s" % ", ".join(config.case_names()))
    parser.add_argument("--data", metavar="URL", help="s3://BUCKET/PREFIX; weights beside the data are fetched too")
    parser.add_argument("--weights", metavar="URL", help="s3://BUCKET/PREFIX")
    parser.add_argument("--no-weights", action="store_true", help="do not fetch the weights beside the data")
    parser.add_argument("--dry-run", action="store_true", help="only show what would be fetched")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of a summary")
    return parser


def main(argv: List[str], interruption: Interruption) -> int:
    """Run `fetch` and return the exit code; prints a summary on stdout, progress and errors on stderr."""
    try:
        arguments = build_parser().parse_args(argv)
        for option in ("data", "weights"):
            given = getattr(arguments, option)
            if given is not None and not remote.is_address(given):
                raise UsageError("--%s is not the address of a bucket" % option, "write s3://BUCKET/PREFIX")
        sources = remote.addresses(arguments.data, arguments.weights, beside=not arguments.no_weights)
        if not sources:
            raise UsageError("nothing is to be fetched", "give --data s3://BUCKET/PREFIX or --weights")
        ask = remote.survey if arguments.dry_run else remote.fetch
        found = ask(arguments.case, sources, interruption)
        facts = {kind: dict(each._asdict()) for kind, each in found.items()}
        printed = json.dumps({"folders": facts}, sort_keys=True) if arguments.json else summary(arguments.case, found)
        output.write_line(1, printed.encode("utf-8", "backslashreplace").decode("utf-8"), "the summary")
    except CaseError as error:
        sys.stderr.write("error: %s\nfix: %s\n" % (printable(redact(error.message)), printable(error.remedy)))
        sys.stderr.flush()
        return int(error.code)
    except KeyboardInterrupt:  # a second signal
        interruption.exit_within(EXIT_SECONDS, int(ExitCode.INTERRUPTED))
        processes.kill_all(os.getpid())
        return int(ExitCode.INTERRUPTED)
    return 0


def summary(case: str, found: Dict[str, Fetched]) -> str:
    """The folders as text."""
    lines = []
    for kind, each in sorted(found.items()):
        state = "" if each.complete else ", not fetched"
        lines += ["%s %s: %s, %s%s" % (case, kind, each.folder, readable(each.bytes), state)]
        lines += ["  from  %s" % each.url, "  digest  %s" % each.digest]
    return "\n".join(printable(line) for line in lines)
