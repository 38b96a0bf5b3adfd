"""The process of one rank: runs the plan and, if it fails, leaves the reason in the spool."""

import json
import os
import re
import sys
import traceback
from typing import Any, Dict, NoReturn

from flagbench_cases.rank.run import RankRun
from flagbench_cases.rank.stopwatch import now
from flagbench_cases.shared.errors import CaseError, ExitCode, system_error
from flagbench_cases.shared.spool import RankSpool

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
    """A failure as facts: exit code, words, and whether it only echoes another rank's end."""
    text = str(error).strip()
    first = text.split("\n")[0] if text else type(error).__name__
    if isinstance(error, CaseError):
        return {"code": int(error.code), "message": error.message, "remedy": error.remedy, "secondary": False}
    if isinstance(error, MemoryError) or OUT_OF_MEMORY.search(text):
        remedy = "use a smaller --set batch_size, or a device with more memory"
        return {"code": int(ExitCode.OUT_OF_MEMORY), "message": first, "remedy": remedy, "secondary": False}
    known = system_error(error, os.environ.get("TMPDIR", "/tmp"))
    if known is not None:
        return {"code": int(known.code), "message": known.message, "remedy": known.remedy, "secondary": False}
    secondary = isinstance(error, RuntimeError) and PEER_LOST.search(text) is not None
    message = "%s: %s" % (type(error).__name__, first)
    if secondary:
        message = "the connection to another rank broke: %s" % first
    remedy = "see the log above for the traceback of the rank that failed first"
    return {"code": int(ExitCode.RANK_FAILED), "message": message, "remedy": remedy, "secondary": secondary}


def report(spool: RankSpool, failure: Dict[str, Any]) -> None:
    """Leave the reason in the spool. Where the disk is full even for that, the traceback above is all there is."""
    try:
        spool.fact("failure", **failure)
    except OSError:
        traceback.print_exc()


def main(folder: str) -> NoReturn:
    """Run the rank that the launcher's environment names."""
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
    except BaseException as error:  # whatever ends this process must be in the record
        if not isinstance(error, CaseError):  # whose words say what is wrong and what to do
            traceback.print_exc()
        report(spool, classify(error))
        code = 1
    # Not sys.exit: destructors of a process group can wait for peers that are gone, and a rank of torch 1.12 was seen
    # once to hang after its last word. Everything is in the spool by now.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
