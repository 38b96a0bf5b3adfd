"""The errors of a run, each with its exit code."""

import errno
import os
import re
from typing import Optional, Sequence

from flagbench_core.exit_codes import ExitCode

NO_PROCESSES = re.compile(
    r"^resource temporarily unavailable|can't start new thread|pthread_create|thread creation failed", re.IGNORECASE
)
PROCESSES_REMEDY = "raise the limit (the container's --pids-limit, or ulimit -u), or use fewer --gpus or workers"


class CaseError(Exception):
    """A failure with a known cause: what is wrong, how to fix it, and the exit code of the run."""

    code = ExitCode.RANK_FAILED

    def __init__(self, message: str, remedy: str, code: Optional[ExitCode] = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        if code is not None:
            self.code = code


class UsageError(CaseError):
    """Unknown or contradictory arguments, detected before a device is touched."""

    code = ExitCode.USAGE


class DataError(CaseError):
    """Missing or corrupt data or weights."""

    code = ExitCode.DATA


class PeerError(CaseError):
    """This rank ends because other ranks failed; they report why."""

    def __init__(self, ranks: Sequence[int]) -> None:
        super().__init__("rank %s failed" % ", ".join(map(str, ranks)), "see the reason of that rank")


def system_error(error: BaseException, folder: str) -> Optional[CaseError]:
    """The CaseError for a resource denied by the system to a run with temporary files in `folder`; else None."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EAGAIN or (number is None and NO_PROCESSES.search(str(error))):
        words = "no more processes or threads can be started (%s)" % os.strerror(errno.EAGAIN)
        return CaseError(words, PROCESSES_REMEDY)
    if number == errno.ENOMEM:
        words = "there is not enough memory to start a process (%s)" % os.strerror(number)
        return CaseError(words, "free memory, or give the container more memory", ExitCode.OUT_OF_MEMORY)
    if number in (errno.ENOSPC, errno.EDQUOT):
        words = "the disk of %s, used for a run's temporary files, is full (%s)" % (folder, os.strerror(number))
        return CaseError(words, "free space there, or set TMPDIR to a folder with free space")
    return None
