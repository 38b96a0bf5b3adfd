"""Classifies the failure of a rank according to its exception and the messages of torch and drivers.

rank/worker.py writes the result to the spool. The record gets the exit code and message of the first failure.
"""

from __future__ import annotations

import os
import re
from typing import Any

from flagbench_cases.engines.preflight import PreflightError
from flagbench_cases.shared.errors import CaseError, PeerError, shared_memory_error, system_error
from flagbench_core.exit_codes import ExitCode

PEER_LOST = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|socket timeout|timed out|remote process exited"
    r"|unhandled system error",
    re.IGNORECASE,
)
"""Messages of collectives that fail because another rank has ended."""
OUT_OF_MEMORY = re.compile(
    r"out of (shared )?memory|can't allocate memory|not enough memory|cannot allocate|status_alloc_failed|bus error",
    re.IGNORECASE,
)
"""Messages of torch, drivers and libraries if the memory of the device or host does not suffice."""


def classify(error: BaseException) -> dict[str, Any]:
    """The fact `failure` of an exception.

    Returns `code`, the exit code; `message`; `remedy`; and `secondary`, whether it only follows from the failure of
    another rank. Also `phase`, if it is not the phase that the rank was in.
    """
    text = str(error).strip()
    first_line = text.split("\n")[0] or type(error).__name__
    if isinstance(error, CaseError):
        secondary = isinstance(error, PeerError)
        failure = {"code": int(error.code), "message": error.message, "remedy": error.remedy, "secondary": secondary}
        if isinstance(error, PreflightError):
            failure["phase"] = "preflight"
        return failure
    folder = os.environ.get("TMPDIR", "/tmp")
    explained = shared_memory_error(error, folder)
    if explained is None and (isinstance(error, MemoryError) or OUT_OF_MEMORY.search(text)):
        remedy = "use a smaller --set batch_size, or a device with more memory"
        return {"code": int(ExitCode.OUT_OF_MEMORY), "message": first_line, "remedy": remedy, "secondary": False}
    if explained is None:
        explained = system_error(error, folder)
    if explained is not None:
        code = int(explained.code)
        return {"code": code, "message": explained.message, "remedy": explained.remedy, "secondary": False}
    secondary = isinstance(error, RuntimeError) and PEER_LOST.search(text) is not None
    message = f"{type(error).__name__}: {first_line}"
    if secondary:
        message = f"the connection to another rank broke: {first_line}"
    remedy = "see the log above for the traceback of the rank that failed first"
    return {"code": int(ExitCode.RANK_FAILED), "message": message, "remedy": remedy, "secondary": secondary}
