"""How a run ended that did not end by itself: crashed, out of memory, hung or interrupted."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from flagbench_core.exit_codes import ExitCode


class EndedAs(str, Enum):
    """What stands in a listing, on a page and before a verdict's sentence in place of a verdict."""

    FAILED = "FAILED"
    OUT_OF_MEMORY = "OUT OF MEMORY"
    TIMEOUT = "TIMEOUT"
    INTERRUPTED = "INTERRUPTED"


class EarlyEnd(Struct, frozen=True):
    """How a run ended, and its exit code."""

    state: EndedAs
    exit_code: int

    def __str__(self) -> str:
        """`FAILED (exit 4)`; the other states have one exit code each."""
        word: str = self.state.value
        if self.state is EndedAs.FAILED:
            return f"{word} (exit {self.exit_code})"
        return word


def early_end(state: str, exit_code: int) -> EarlyEnd | None:
    """How a run of that `status` ended early.

    None where it ended by itself, also if its own checks failed: then its verdict is INVALID.
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
