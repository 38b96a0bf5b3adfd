"""`python -m flagbench_cases CASE ...`: signals are noted before anything else is imported, then the run begins.

`prepare CASE ...`, or `CASE prepare ...` as an image is given it, makes the folders that a run reads.
"""

import sys
from typing import List

from flagbench_cases.shared.interruption import Interruption

# ExitCode.INTERRUPTED, which is not imported yet.
INTERRUPTED = 7


def main(argv: List[str]) -> int:
    """One run, or one preparation, from its arguments to its exit code."""
    code = INTERRUPTED
    with Interruption() as interruption:
        try:
            # Imported here: it takes a while, in which a container may be stopped as well.
            from flagbench_cases.shared.stdio import Stderr

            with Stderr():
                code = run(argv, interruption)
        except KeyboardInterrupt:  # a second signal, before there is anything to record or once it is recorded
            pass
    return code


def run(argv: List[str], interruption: Interruption) -> int:
    """What is asked for; returns its exit code."""
    if "prepare" in argv[:2]:
        from flagbench_cases.prepare import command

        asked = command.arguments_of(argv)
        if asked is not None:
            return command.main(asked, interruption)
    from flagbench_cases.node import main as node

    return node.main(argv, interruption)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
