"""The process of one rank: runs the plan and, on failure, writes the reason to the spool.

The parent process of the node (`node/local_ranks.py`) starts one for each rank. They begin in two stages, so that a
node that is not fit for the run is found before several ranks use its devices:

1. Every rank imports torch and waits. The parent releases the first rank of the node, which checks image and devices.
2. The first rank's heartbeat says that the check has succeeded. Then the parent releases the other ranks.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from typing import Any, NoReturn

from flagbench_cases.engines import preflight
from flagbench_cases.rank.failure import classify
from flagbench_cases.shared import interpreter, processes
from flagbench_cases.shared.errors import CaseError
from flagbench_cases.shared.spool import RankSpool


def main(folder: str) -> NoReturn:
    """Run the rank named by the environment. The parent process of the node starts it (`node/local_ranks.py`)."""
    processes.die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the exit status says which signal ended this rank
    gc.set_threshold(interpreter.STARTING)
    with open(os.path.join(folder, "plan.json"), encoding="utf-8") as file:
        plan = json.load(file)
    rank = int(os.environ["RANK"])
    code = 0
    spool = None
    try:
        if os.environ["LOCAL_RANK"] == "0":
            check_node(plan, rank)
        else:
            with contextlib.suppress(ImportError, OSError):  # the first rank explains what is wrong with torch
                import_loop()
            wait_for_release()
        spool = RankSpool(folder, rank)
        spool.fact("process", pid=os.getpid())
        spool.beat()  # the first rank's first beat makes the parent release the others
        run(plan, spool)
    except BaseException as error:  # every failure must be in the record
        if not isinstance(error, CaseError):  # a CaseError explains itself
            traceback.print_exc()
        report(folder, rank, spool, classify(error))
        code = 1
    # Not sys.exit: the destructor of a process group may wait for peers that are gone, and ranks have been seen to
    # hang at exit on torch 1.12. Everything is in the spool by now.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def check_node(plan: dict[str, Any], rank: int) -> None:
    """On the first rank of a node: check image and devices before any of its ranks uses one. Raises CaseError.

    While it waits for its release, it does what needs no device: it imports torch and, on rank 0 of several, starts
    the store through which the ranks find each other.
    """
    preflight.import_torch(plan)
    import_loop()
    if rank == 0 and int(os.environ["WORLD_SIZE"]) > 1:
        from flagbench_cases.rank.store import host_store

        host_store(plan)  # forked before this process uses its device: the copy of one that does is not usable
    wait_for_release()
    preflight.check(plan)


def import_loop() -> None:
    """Import everything that a run needs, torch included, which takes seconds: `run` then finds it imported."""
    importlib.import_module("flagbench_cases.rank.run")


def wait_for_release() -> None:
    """Wait until the parent process lets this rank use its device, by a byte on stdin.

    If the parent has ended, stdin ends without a byte, and this process ends, too.
    """
    if not os.read(0, 1):
        os._exit(1)
    # From now on stdin is empty, as for any process in the background.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def run(plan: dict[str, Any], spool: RankSpool) -> None:
    """Run the plan. The clock of the run starts when all ranks of the job have joined."""
    from flagbench_cases.rank.run import RankRun
    from flagbench_cases.rank.stopwatch import now

    store = None
    world = int(os.environ["WORLD_SIZE"])
    if world > 1:
        from flagbench_cases.rank.store import join_store

        store = join_store(plan, world)
    started = now()
    spool.phase("init")
    RankRun(plan, spool, store, started).run()


def report(folder: str, rank: int, spool: RankSpool | None, failure: dict[str, Any]) -> None:
    """Write the failure to the rank's spool in `folder`. If the disk is full, only the traceback on stderr remains.

    `spool`: the spool; None if the rank failed before it was opened.
    """
    try:
        if spool is None:
            spool = RankSpool(folder, rank)
        spool.fact("failure", **failure)
    except OSError:
        traceback.print_exc()


if __name__ == "__main__":
    main(sys.argv[1])
