"""The one error type that reaches the user: what is wrong, what to do, and the exit code."""

from __future__ import annotations

from flagbench_core.exit_codes import ExitCode


class FlagbenchError(Exception):
    """A failure that the user can do something about. cli/main.py prints it and ends with its exit code."""

    def __init__(self, message: str, *, remedy: str, code: ExitCode = ExitCode.USAGE) -> None:
        """`message`: what is wrong. `remedy`: what to do. `code`: the exit code of the command."""
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.code = code
