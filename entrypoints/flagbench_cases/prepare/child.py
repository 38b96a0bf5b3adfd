"""Runs a conversion or a check of data and weights in a child process, whose program is child_main.py.

The parent can thus report whatever happens to the child: a crash in a file format's library, an out-of-memory kill,
or an interruption, upon which the parent kills it. The two exchange a plan and an answer, JSON files in a folder:

    plan.json    {"do": "prepare" or "check", "case": NAME, "out": PATH, "force": true or false,
                  "data", "weights", "vocabulary": the path of a source, or null}
    answer.json  {"results": {KIND: the facts of a folder, see PreparedFolder.as_json}}
                 or {"failure": {"message", "remedy", "code"}}
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any

from flagbench_cases.shared import processes, user_home
from flagbench_cases.shared.errors import CaseError, DataError
from flagbench_cases.shared.interpreter import child_environment
from flagbench_cases.shared.interruption import Interruption
from flagbench_core import python_module, scratch
from flagbench_core.exit_codes import ExitCode

PLAN = "plan.json"
ANSWER = "answer.json"
POLL_SECONDS = 0.1
"""How often an interruption is looked for: soon enough for a person who presses Ctrl-C."""
MEMORY_REMEDY = "provide more memory; no partial output was left"


def run(plan: dict[str, Any], interruption: Interruption, doing: str) -> dict[str, Any]:
    """Have a child carry out a plan; returns its results.

    Raises CaseError for an error that the child reports, or if it ended without an answer; `doing`, such as "the
    check", is then the subject of the message.
    """
    kills_before = processes.oom_kills()
    try:
        with scratch.scratch() as folder:
            with open(os.path.join(folder, PLAN), "w", encoding="utf-8") as file:
                json.dump(plan, file)
            code = _run_child(folder, interruption)
            if interruption.received:
                raise CaseError(interruption.reason, "run again; what was finished is kept", ExitCode.INTERRUPTED)
            if code:
                memory_killed = kills_before is not None and (processes.oom_kills() or 0) > kills_before
                raise error_of(code, memory_killed, doing)
            with open(os.path.join(folder, ANSWER), encoding="utf-8") as file:
                answer: dict[str, Any] = json.load(file)
    except OSError as error:
        raise CaseError(
            f"{tempfile.gettempdir()} cannot be used ({error.strerror or error})",
            "free space there, or set TMPDIR",
            ExitCode.NOT_STORED,
        ) from None
    if "failure" in answer:
        failure = answer["failure"]
        raise CaseError(failure["message"], failure["remedy"], ExitCode(failure["code"]))
    return dict(answer["results"])


def error_of(code: int, memory_killed: bool, doing: str) -> CaseError:
    """Return the error for a child that ended without an answer.

    `code`: its exit code, or minus the number of the signal that ended it. `memory_killed`: whether the kernel killed
    a process for lack of memory meanwhile. `doing`: the subject of the message.
    """
    if code == -signal.SIGKILL:
        if memory_killed:
            words = f"{doing} was killed by the kernel's OOM killer"
            return CaseError(words, MEMORY_REMEDY, ExitCode.OUT_OF_MEMORY)
        remedy = MEMORY_REMEDY + "; the kernel log lists kills by the kernel"
        return CaseError(f"{doing} was killed", remedy, ExitCode.OUT_OF_MEMORY)
    if code in (-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP):
        words = f"{doing} was ended by {signal.Signals(-code).name}"
        return CaseError(words, "run again; no partial output was left", ExitCode.INTERRUPTED)
    if code == -signal.SIGBUS:
        words = f"{doing} could not access a mapped file: a source was truncated, or the disk is full"
        return DataError(words, "free disk space, make sure that the sources do not change, and run again")
    if code < 0:
        words = f"{doing} crashed in a library ({processes.describe_exit(code)}): a source is damaged or malicious"
        return DataError(words, "download the source again")
    return CaseError(f"{doing} ended with exit {code}", "report it with the output above", ExitCode.BUG)


def _run_child(folder: str, interruption: Interruption) -> int:
    """Run the child until it ends, or kill it at an interruption; returns its exit code."""
    env = child_environment()
    # Else tokenizers warns that its threads do not survive a fork.
    env.setdefault("TOKENIZERS_PARALLELISM", "false")
    user_home.prepare(env, os.path.join(folder, "home"))
    # A new session: Ctrl-C is handled by this process. Output of libraries goes to stderr.
    child = subprocess.Popen(
        [sys.executable, *python_module.options("flagbench_cases.prepare.child_main"), folder],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=2,
        start_new_session=True,
    )
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return child.wait(timeout=POLL_SECONDS)
            if interruption.received:
                child.kill()
                return child.wait()
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
