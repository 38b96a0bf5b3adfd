"""The process of one rank: runs the plan and, on failure, writes the reason to the spool."""

import gc
import json
import os
import re
import sys
import traceback
from typing import Any, Dict, NoReturn

from flagbench_cases.shared import interpreter
from flagbench_cases.shared.errors import CaseError, PeerError, shared_memory_error, system_error
from flagbench_cases.shared.spool import RankSpool
from flagbench_core.exit_codes import ExitCode

PEER_LOST = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|socket timeout|timed out|remote process exited"
    r"|unhandled system error",
    re.IGNORECASE,
)
OUT_OF_MEMORY = re.compile(
    r"out of (shared )?memory|can't allocate memory|not enough memory|cannot allocate|status_alloc_failed|bus error",
    re.IGNORECASE,
)


def classify(error: BaseException) -> Dict[str, Any]:
    """A failure as facts: exit code, message, remedy, and whether it is secondary to the failure of another rank."""
    text = str(error).strip()
    first = text.split("\n")[0] if text else type(error).__name__
    if isinstance(error, CaseError):
        secondary = isinstance(error, PeerError)
        return {"code": int(error.code), "message": error.message, "remedy": error.remedy, "secondary": secondary}
    known = shared_memory_error(error, os.environ.get("TMPDIR", "/tmp"))
    if known is None and (isinstance(error, MemoryError) or OUT_OF_MEMORY.search(text)):
        remedy = "use a smaller --set batch_size, or a device with more memory"
        return {"code": int(ExitCode.OUT_OF_MEMORY), "message": first, "remedy": remedy, "secondary": False}
    known = known or system_error(error, os.environ.get("TMPDIR", "/tmp"))
    if known is not None:
        return {"code": int(known.code), "message": known.message, "remedy": known.remedy, "secondary": False}
    secondary = isinstance(error, RuntimeError) and PEER_LOST.search(text) is not None
    message = "%s: %s" % (type(error).__name__, first)
    if secondary:
        message = "the connection to another rank broke: %s" % first
    remedy = "see the log above for the traceback of the rank that failed first"
    return {"code": int(ExitCode.RANK_FAILED), "message": message, "remedy": remedy, "secondary": secondary}


def report(spool: RankSpool, failure: Dict[str, Any]) -> None:
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
