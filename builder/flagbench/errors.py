"""The one error type that reaches the user: what is wrong, what to do, and the exit code."""

from __future__ import annotations

from flagbench_core.exit_codes import ExitCode


class FlagbenchError(Exception):
    """A failure with its remedy; cli.main turns it into two sentences and an exit code."""

    def __init__(self, message: str, *, remedy: str, code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.code = code
