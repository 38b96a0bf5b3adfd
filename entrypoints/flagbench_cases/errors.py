"""Exit codes of an image, and the failures that carry one."""

from enum import IntEnum
from typing import Optional


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
    WRONG_HARDWARE = 13
    NOT_STORED = 14


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
