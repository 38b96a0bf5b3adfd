"""Exit codes of an image, and the failures that carry one."""

import errno
import os
import re
from enum import IntEnum
from typing import Optional

NO_PROCESSES = re.compile(
    r"^resource temporarily unavailable|can't start new thread|pthread_create|thread creation failed", re.IGNORECASE
)
PROCESSES_REMEDY = "raise the limit (the container's --pids-limit, or ulimit -u), or use fewer --gpus or workers"


class ExitCode(IntEnum):
    """The codes an entrypoint ends with; numbers and names are those of the host side's table."""

    OK = 0
    BUG = 1
    USAGE = 2
    DATA = 3
    RANK_FAILED = 4
    OUT_OF_MEMORY = 5
    TIMEOUT = 6
    INTERRUPTED = 7
    INVALID = 12
    WRONG_HARDWARE = 13
    NOT_STORED = 14
    ENGINE = 15


class CaseError(Exception):
    """A failure whose cause is known: what is wrong, what to do, and the exit code of the run."""

    code = ExitCode.RANK_FAILED

    def __init__(self, message: str, remedy: str, code: Optional[ExitCode] = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        if code is not None:
            self.code = code


class UsageError(CaseError):
    """Unknown or contradictory arguments, found before a device is touched."""

    code = ExitCode.USAGE


class DataError(CaseError):
    """Data or weights are missing or corrupt."""

    code = ExitCode.DATA


def system_error(error: BaseException, folder: str) -> Optional[CaseError]:
    """The error for a resource that the system refused a run with its files in `folder`; None for another error."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EAGAIN or (number is None and NO_PROCESSES.search(str(error))):
        words = "no more processes or threads can be started here (%s)" % os.strerror(errno.EAGAIN)
        return CaseError(words, PROCESSES_REMEDY)
    if number == errno.ENOMEM:
        words = "there is not enough memory to start a process (%s)" % os.strerror(number)
        return CaseError(words, "free memory, or give the container more", ExitCode.OUT_OF_MEMORY)
    if number in (errno.ENOSPC, errno.EDQUOT):
        words = "the disk of %s, where a run keeps its own files, is full (%s)" % (folder, os.strerror(number))
        return CaseError(words, "free space there, or set TMPDIR to a folder with room")
    return None
