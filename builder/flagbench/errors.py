"""Exit codes and the one error type that reaches the user: what is wrong, and what to do."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Every code a flagbench process ends with. 1 is left to our own bugs."""

    OK = 0
    BUG = 1
    USAGE = 2
    DATA = 3
    RANK_FAILED = 4
    OUT_OF_MEMORY = 5
    TIMEOUT = 6
    INTERRUPTED = 7
    BUILD_FAILED = 8
    BELOW = 9
    NOT_COMPARABLE = 10
    INCONCLUSIVE = 11
    INVALID = 12
    WRONG_HARDWARE = 13
    NOT_STORED = 14
    ENGINE = 15

    @property
    def meaning(self) -> str:
        """One line for the table in the docs."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.OK: "done; for verify: REPRODUCED or ABOVE",
    ExitCode.BUG: "a bug in flagbench",
    ExitCode.USAGE: "usage: unknown or contradictory arguments, an invalid manifest",
    ExitCode.DATA: "data, weights or a record missing or corrupt",
    ExitCode.RANK_FAILED: "a rank failed",
    ExitCode.OUT_OF_MEMORY: "out of memory",
    ExitCode.TIMEOUT: "timeout or hang",
    ExitCode.INTERRUPTED: "interrupted; the record is kept",
    ExitCode.BUILD_FAILED: "an image could not be built",
    ExitCode.BELOW: "verdict BELOW",
    ExitCode.NOT_COMPARABLE: "verdict NOT_COMPARABLE",
    ExitCode.INCONCLUSIVE: "verdict INCONCLUSIVE",
    ExitCode.INVALID: "verdict INVALID; a run whose own checks failed, or whose loss was not finite",
    ExitCode.WRONG_HARDWARE: "wrong hardware, found before the run",
    ExitCode.NOT_STORED: "measured, but the record could not be stored; or a command could not print its result",
    ExitCode.ENGINE: "container engine or network",
}


class FlagbenchError(Exception):
    """A failure with its remedy; cli.main turns it into two sentences and an exit code."""

    def __init__(self, message: str, *, remedy: str, code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.code = code
