"""What goes wrong with a store."""

from __future__ import annotations

from flagbench.errors import ExitCode, FlagbenchError


class StoreError(FlagbenchError):
    """A store that did not take a record (NOT_STORED), or returned a damaged one or none (DATA)."""

    def __init__(self, message: str, *, remedy: str, code: ExitCode = ExitCode.NOT_STORED) -> None:
        super().__init__(message, remedy=remedy, code=code)


def damaged(location: str, what: str) -> StoreError:
    """The error for a stored object that is incomplete or has changed since it was stored."""
    return StoreError(
        f"the stored record {location} {what}",
        remedy="restore it from a copy, or store the record again from the run's --out folder",
        code=ExitCode.DATA,
    )
