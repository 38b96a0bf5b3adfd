"""The process around one rank: starts it, waits for it, and leaves in the spool how it ended.

torch's launcher takes exit 0 for success, whatever was done until then, and only a process's own parent learns how it
ended. So the launcher starts this process, which imports no torch, and gets exit 0 from it for a rank that has done
all of its work, and for no other.
"""

import os
import subprocess
import sys
from typing import List

from flagbench_cases.shared import processes
from flagbench_cases.shared.spool import SpoolReader, write_exit

# Without `site`: customisations of a site or user are for the rank, and must not end this process at its start.
COMMAND = ("-s", "-S", "-m", "flagbench_cases.node.guard")


def main(argv: List[str]) -> int:
    """Run the rank that the launcher's environment names, its spool in the folder `argv[0]`. 0: it did its work."""
    processes.die_with_parent()
    folder, rank = argv[0], int(os.environ["RANK"])
    # A SIGTERM ends this process, and the kernel then the rank: how the launcher ends all once one has failed.
    command = [sys.executable, "-u", "-m", "flagbench_cases.rank.worker", folder]
    code = subprocess.Popen(command, preexec_fn=processes.die_with_parent).wait()
    progress = SpoolReader(folder, rank).progress()
    if code == 0 and progress is not None and progress.phase == "done":
        return 0
    try:
        write_exit(folder, rank, code)
    except OSError:  # the disk is full or the spool removed: the exit code below still says that it failed
        pass
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
