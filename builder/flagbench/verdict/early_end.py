"""Name how a run ended early: it crashed, ran out of memory, hung or was interrupted.

Listings, pages and verdicts show this name in place of INVALID, which would say less.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from flagbench_core.exit_codes import ExitCode


class EndedAs(str, Enum):
    """The words that stand in place of a verdict."""

    FAILED = "FAILED"
    OUT_OF_MEMORY = "OUT OF MEMORY"
    TIMEOUT = "TIMEOUT"
    INTERRUPTED = "INTERRUPTED"


class EarlyEnd(Struct, frozen=True):
    """How a run ended early, with the exit code of its process."""

    state: EndedAs
    exit_code: int

    def __str__(self) -> str:
        """Return `FAILED (exit 4)`, or the state alone if that has only one exit code."""
        word: str = self.state.value
        if self.state is EndedAs.FAILED:
            return f"{word} (exit {self.exit_code})"
        return word


def find_early_end(state: str, exit_code: int) -> EarlyEnd | None:
    """Return how a run ended early, by the state and exit code in the `status` of its record.

    None if it ended by itself. A run whose own checks failed did, too: its verdict is INVALID.
    """
    if state == "ok" or exit_code == ExitCode.INVALID:
        return None
    if state == "interrupted":
        return EarlyEnd(EndedAs.INTERRUPTED, exit_code)
    if exit_code == ExitCode.OUT_OF_MEMORY:
        return EarlyEnd(EndedAs.OUT_OF_MEMORY, exit_code)
    if exit_code == ExitCode.TIMEOUT:
        return EarlyEnd(EndedAs.TIMEOUT, exit_code)
    return EarlyEnd(EndedAs.FAILED, exit_code)
