"""The parent process of one rank: starts it, waits for it, and writes its exit status to the spool.

torch's launcher treats exit code 0 as success even if the rank did not finish its work, and only the parent of a
process learns its exit status. So the launcher starts this process, which does not import torch and exits with 0 only
if the rank has finished its work.
"""

import os
import subprocess
import sys
from typing import List

from flagbench_cases.shared import processes
from flagbench_cases.shared.spool import SpoolReader, write_exit
from flagbench_core import python_module

# Without `site`: site or user customisations are meant for the rank and must not break this process.
COMMAND = ("-s", "-S", *python_module.options("flagbench_cases.node.guard"))


def main(argv: List[str]) -> int:
    """Run the rank named by the launcher's environment, with its spool in folder `argv[0]`. 0 if it finished."""
    processes.die_with_parent()
    folder, rank = argv[0], int(os.environ["RANK"])
    # The launcher sends SIGTERM to all once one rank fails; it ends this process, and the kernel then kills the rank.
    command = [sys.executable, "-u", *python_module.options("flagbench_cases.rank.worker"), folder]
    code = subprocess.Popen(command, preexec_fn=processes.die_with_parent).wait()
    progress = SpoolReader(folder, rank).progress()
    if code == 0 and progress is not None and progress.phase == "done":
        return 0
    try:
        write_exit(folder, rank, code)
    except OSError:  # disk full or spool removed: the exit code below still reports the failure
        pass
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
