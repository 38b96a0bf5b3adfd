"""Work that a process of its own does: a conversion, an upload, a download.

The parent stays able to report whatever happens to it: a crash in a file format's library, an out-of-memory kill, an
interruption, upon which the child is killed.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any, Callable, Dict, NamedTuple, Optional

from flagbench_cases.prepare.meter import Meter
from flagbench_cases.shared import processes, scratch, user_home
from flagbench_cases.shared.errors import CaseError, DataError, ExitCode
from flagbench_cases.shared.interpreter import child_environment
from flagbench_cases.shared.interruption import Interruption

PLAN, ANSWER = "plan.json", "answer.json"
POLL_SECONDS = 0.1
MEMORY_REMEDY = "provide more memory; no partial output was left"

Work = Callable[[Dict[str, Any], Meter, Dict[str, Any]], None]
"""What the child does, from its plan; it adds its results to the dictionary, and raises CaseError."""


class Ended(NamedTuple):
    """How the child ended."""

    code: int
    """Its exit code, or minus the number of the signal."""
    answer: Dict[str, Any]
    """`results`, and `failure` if it failed; empty if it was killed, crashed or was interrupted."""
    memory_killed: bool


def run(
    module: str, plan: Dict[str, Any], interruption: Interruption, environment: Optional[Dict[str, str]] = None
) -> Ended:
    """Run `python -m MODULE` with a plan, and variables of its own, to its end. It is killed on interruption.

    Raises CaseError if there is no place for temporary files.
    """
    kills = processes.oom_kills()
    scratch.remove_leftovers()
    try:
        with scratch.scratch() as folder:
            with open(os.path.join(folder, PLAN), "w", encoding="utf-8") as file:
                json.dump(plan, file)
            code = _follow(module, folder, interruption, environment or {})
            answer = _answer(folder) if code == 0 and not interruption else {}
    except OSError as error:
        raise CaseError(
            "%s cannot be used (%s)" % (tempfile.gettempdir(), error.strerror or error),
            "free space there, or set TMPDIR",
            ExitCode.NOT_STORED,
        ) from None
    return Ended(code, answer, kills is not None and (processes.oom_kills() or 0) > kills)


def raise_failure(answer: Dict[str, Any]) -> None:
    """Raise the CaseError that the child reported, if any."""
    if "failure" in answer:
        failure = answer["failure"]
        raise CaseError(failure["message"], failure["remedy"], ExitCode(failure["code"]))


def died(ended: Ended, doing: str) -> CaseError:
    """The error for a transfer that reported nothing; `doing` begins its message."""
    if ended.code == -signal.SIGKILL:
        remedy = "provide more memory, and run again"
        words = "%s was killed%s" % (doing, " by the kernel's OOM killer" if ended.memory_killed else "")
        return CaseError(words, remedy, ExitCode.OUT_OF_MEMORY)
    words = "%s ended with %s" % (doing, processes.describe_exit(ended.code))
    return CaseError(words, "report it with the output above", ExitCode.BUG)


def _follow(module: str, folder: str, interruption: Interruption, environment: Dict[str, str]) -> int:
    env = {**child_environment(), **environment}
    env.setdefault("TOKENIZERS_PARALLELISM", "false")
    user_home.prepare(env, os.path.join(folder, "home"))
    # A new session: Ctrl-C is handled by this process. Output of libraries goes to stderr.
    child = subprocess.Popen(
        [sys.executable, "-m", module, folder],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=2,
        start_new_session=True,
    )
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return child.wait(timeout=POLL_SECONDS)
            if interruption:
                child.kill()
                return child.wait()
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


def _answer(folder: str) -> Dict[str, Any]:
    with open(os.path.join(folder, ANSWER), encoding="utf-8") as file:
        return json.load(file)  # type: ignore[no-any-return]


def serve(folder: str, work: Work, kept: Callable[[Dict[str, Any], Dict[str, Any]], str] = lambda *_: "") -> int:
    """In the child: read the plan, do the work, write the answer. A bug leaves its traceback and exit code 1.

    Args:
        kept: what to add to the remedy of a failure, from the plan and the results until then.
    """
    processes.die_with_parent()
    with open(os.path.join(folder, PLAN), encoding="utf-8") as file:
        plan = json.load(file)
    meter = Meter()
    results: Dict[str, Any] = {}
    failed = _attempt(work, plan, meter, results)
    meter.end_phase()
    answer: Dict[str, Any] = {"results": results}
    if failed is not None:
        remedy = failed.remedy + kept(plan, results)
        answer = {"failure": {"message": failed.message, "remedy": remedy, "code": int(failed.code)}}
    with open(os.path.join(folder, ANSWER), "w", encoding="utf-8") as file:
        json.dump(answer, file)
    return 0


def _attempt(work: Work, plan: Dict[str, Any], meter: Meter, results: Dict[str, Any]) -> Optional[CaseError]:
    """Do the work; returns the error it fails with, if any. Unexpected exceptions propagate."""
    starved = CaseError("there is not enough memory", MEMORY_REMEDY, ExitCode.OUT_OF_MEMORY)
    try:
        work(plan, meter, results)
    except CaseError as error:
        return error
    except MemoryError:
        return starved
    except OSError as error:
        return DataError(str(error), "check that the file is readable and the folder is writable")
    except RuntimeError as error:
        if "allocate memory" not in str(error):  # torch's message
            raise
        return starved
    return None
