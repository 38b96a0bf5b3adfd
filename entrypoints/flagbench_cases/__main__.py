"""`python -m flagbench_cases CASE ...`: signals are noted before anything else is imported, then the run begins."""

import sys
from typing import List

from flagbench_cases.interruption import Interruption


def main(argv: List[str]) -> int:
    """One run from its arguments to its exit code."""
    with Interruption() as interruption:
        # Imported here: it takes a while, in which a container may be stopped as well.
        from flagbench_cases import edge

        return edge.main(argv, interruption)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
