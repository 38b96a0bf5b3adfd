"""The process of one rank: runs the plan and, on failure, writes the reason to the spool."""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from typing import Any, NoReturn

from flagbench_cases.rank.failure import classify
from flagbench_cases.shared import interpreter
from flagbench_cases.shared.errors import CaseError
from flagbench_cases.shared.spool import RankSpool


def report(spool: RankSpool, failure: dict[str, Any]) -> None:
    """Write the failure to the spool. If the disk is full, only the traceback on stderr remains."""
    try:
        spool.fact("failure", **failure)
    except OSError:
        traceback.print_exc()


def main(folder: str) -> NoReturn:
    """Run the rank named by the launcher's environment."""
    gc.set_threshold(interpreter.STARTING)
    from flagbench_cases.rank.run import RankRun
    from flagbench_cases.rank.stopwatch import now

    started = now()
    rank = int(os.environ["RANK"])
    spool = RankSpool(folder, rank)
    spool.fact("process", pid=os.getpid())
    spool.phase("init")
    with open(os.path.join(folder, "plan.json"), encoding="utf-8") as file:
        plan = json.load(file)
    code = 0
    try:
        RankRun(plan, spool, started).run()
    except BaseException as error:  # every failure must be in the record
        if not isinstance(error, CaseError):  # a CaseError explains itself
            traceback.print_exc()
        report(spool, classify(error))
        code = 1
    # Not sys.exit: the destructor of a process group may wait for peers that are gone, and ranks have been seen to
    # hang at exit on torch 1.12. Everything is in the spool by now.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
