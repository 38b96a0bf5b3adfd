"""The errors of a run, each with a remedy and an exit code; the image shows them and ends with that code."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from typing import Sequence

from flagbench_core import process_limits
from flagbench_core.exit_codes import ExitCode

SHARED_MEMORY = "/dev/shm"
"""The file system in memory through which the processes that load data hand over their batches."""


class CaseError(Exception):
    """A failure with a known cause: what is wrong, how to fix it, and the exit code of the run."""

    code = ExitCode.RANK_FAILED
    """The exit code if none is given; subclasses have their own."""

    def __init__(self, message: str, remedy: str, code: ExitCode | None = None) -> None:
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
        numbers = ", ".join(map(str, ranks))
        super().__init__(f"rank {numbers} failed", "see the reason of that rank")


def system_error(error: BaseException, folder: str) -> CaseError | None:
    """The CaseError for a module that is missing, or a resource that the system denies; else None.

    `folder` is that of the run's temporary files.
    """
    if isinstance(error, ModuleNotFoundError):
        return _missing_module_error(error)
    if process_limits.is_refusal(error):
        return CaseError(process_limits.reason(error), process_limits.REMEDY)
    number = None
    if isinstance(error, OSError):
        number = error.errno
    if number == errno.ENOMEM:
        words = f"there is not enough memory to start a process ({os.strerror(number)})"
        return CaseError(words, "free memory, or give the container more memory", ExitCode.OUT_OF_MEMORY)
    if number in (errno.ENOSPC, errno.EDQUOT):
        words = f"the disk of {folder}, used for a run's temporary files, is full ({os.strerror(number)})"
        return CaseError(words, "free space there, or set TMPDIR to a folder with free space")
    return None


def _missing_module_error(error: ModuleNotFoundError) -> CaseError | None:
    """The error for a library that is not installed; None for a module of flagbench, whose absence is a defect."""
    if error.name is None or error.name.startswith("flagbench"):
        return None
    words = f"{error.name} is not installed in this Python, {sys.executable}"
    return CaseError(words, "run `pip install -e '.[cases]'` in the checkout of flagbench", ExitCode.USAGE)


def shared_memory_error(error: BaseException, folder: str) -> CaseError | None:
    """The CaseError if an error says that SHARED_MEMORY is full; None for any other error.

    `folder` is that of temporary files: a full disk there raises the same error.
    """
    if not _is_shared_memory_full(error, folder):
        return None
    full = os.strerror(errno.ENOSPC)
    remedy = "give the container more (--shm-size 1g), or use fewer workers"
    return CaseError(f"the shared memory of {SHARED_MEMORY} is full ({full})", remedy, ExitCode.OUT_OF_MEMORY)


def _is_shared_memory_full(error: BaseException, folder: str) -> bool:
    """Whether an error says that SHARED_MEMORY is full.

    The error of the system has no path. It is that of SHARED_MEMORY if less is free there than in `folder`.
    """
    if isinstance(error, OSError):
        if error.errno != errno.ENOSPC or error.filename is not None:
            return False
        return _free(SHARED_MEMORY) < _free(folder)
    # Otherwise torch raised the error: a bus error killed a process of its data loader ("out of shared memory"), or a
    # file of torch in SHARED_MEMORY could not be made larger.
    text = f"{error}\n{error.__cause__}"
    if "out of shared memory" in text:
        return True
    return "/torch_" in text and os.strerror(errno.ENOSPC) in text


def _free(folder: str) -> float:
    """Free bytes of a file system; infinite if the folder does not exist."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return float("inf")
