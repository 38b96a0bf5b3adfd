"""`python -m flagbench_cases CASE ...`: installs signal handlers before importing anything else, then runs the case.

`prepare CASE ...` (in an image `CASE prepare ...`) converts data and weights into the folders that a run reads.
"""

import os
import sys
from typing import List

from flagbench_cases.shared.interruption import Interruption

# Values of flagbench_core.exit_codes.ExitCode, which cannot be imported before signals are handled.
INTERRUPTED = 7
RANK_FAILED = 4


def main(argv: List[str]) -> int:
    """Run or prepare a case; returns the exit code."""
    code = INTERRUPTED  # unless the run ends otherwise
    with Interruption() as interruption:
        try:
            # Imported here: the import takes time, during which a container may be stopped too.
            from flagbench_cases.shared.stdio import Stderr
            from flagbench_core import process_limits

            try:
                with Stderr():
                    code = run(argv, interruption)
            except OSError as error:  # too many open files, before there is a request that a record could describe
                if not process_limits.no_descriptor(error):
                    raise
                print(f"error: {process_limits.reason(error)}\nfix: {process_limits.REMEDY}", file=sys.stderr)
                code = RANK_FAILED
        except KeyboardInterrupt:  # a second signal, before there is a record to write or after it was written
            pass
    if interruption.abandoned:  # threads that cannot be ended would keep the process alive
        os._exit(code)
    return code


def run(argv: List[str], interruption: Interruption) -> int:
    """Dispatch to `prepare`, `--describe` or a run; returns the exit code."""
    if "prepare" in argv[:2]:
        from flagbench_cases.prepare import command

        arguments = command.prepare_arguments(argv)
        if arguments is not None:
            return command.main(arguments, interruption)
    refusal = None
    if "--describe" in argv:
        from flagbench_cases.node.describe import describe
        from flagbench_cases.shared.errors import CaseError

        try:
            return describe(argv)
        except CaseError as error:
            refusal = error
    from flagbench_cases.node import main as node

    return node.main(argv, interruption, refusal)


def start() -> None:
    """Run this process's arguments and end the process with the exit code, even if PYTHONINSPECT is set.

    With that variable, Python would print the exception of sys.exit, wait for input and end with another code. It is
    removed from the environment, so that child processes do not inherit it.
    """
    inspects = os.environ.pop("PYTHONINSPECT", "") != ""
    try:
        code = main(sys.argv[1:])
    except SystemExit as stop:  # argparse's, after --help
        code = int(stop.code or 0)
    if inspects:
        sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    start()
