"""What every process of flagbench ends with, on the host and in an image."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Every code a flagbench process ends with, each with one line for the table in the docs."""

    meaning: str

    def __new__(cls, code: int, meaning: str = "") -> ExitCode:
        """A member from its code and its meaning."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    OK = 0, "done; for verify: REPRODUCED, ABOVE, FASTER or SAME, for accept: PASS"
    BUG = 1, "a bug in flagbench"
    USAGE = (
        2,
        "usage: unknown or contradictory arguments, an invalid manifest; a check that found something: "
        "doctor, store doctor, and --check of other commands",
    )
    DATA = 3, "data, weights, a record or the catalogue missing or corrupt"
    RANK_FAILED = 4, "a rank failed"
    OUT_OF_MEMORY = 5, "out of memory"
    TIMEOUT = 6, "timeout or hang"
    INTERRUPTED = 7, "interrupted; the record is kept"
    BUILD_FAILED = 8, "an image could not be built"
    BELOW = 9, "verdict BELOW, or SLOWER than a baseline; for accept: FAIL"
    NOT_COMPARABLE = 10, "verdict NOT_COMPARABLE"
    INCONCLUSIVE = 11, "verdict INCONCLUSIVE or REFERENCE; for accept: INCONCLUSIVE"
    INVALID = 12, "verdict INVALID; a run whose own checks failed, or whose loss was not finite"
    WRONG_HARDWARE = 13, "wrong hardware, found before the run"
    NOT_STORED = 14, "measured, but the record could not be stored; or a command could not print its result"
    ENGINE = 15, "container engine or network"


OF_A_RUN = frozenset(ExitCode) - {
    ExitCode.BUILD_FAILED,
    ExitCode.BELOW,
    ExitCode.NOT_COMPARABLE,
    ExitCode.INCONCLUSIVE,
}
"""What a run can end with; the others are of a build and of a verdict."""
