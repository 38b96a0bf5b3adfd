"""What a rule finds, and the error for a file that no rule can be applied to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flagbench.errors import FlagbenchError
from flagbench.terminal import visible
from flagbench_core.exit_codes import ExitCode

_SHOWN = 20
"""Problems that an error lists; the rest are counted."""


class TableError(FlagbenchError):
    """A file that cannot be read as rows, with every problem of it."""

    def __init__(
        self, problems: Sequence[str], remedy: str = "docs/lint-a-table.md has the columns and units"
    ) -> None:
        more = [f"... and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        super().__init__("\n  ".join([*problems[:_SHOWN], *more]), remedy=remedy, code=ExitCode.DATA)


@dataclass(frozen=True)
class Finding:
    """A cell of a published table that cannot be right, or that is not there."""

    row: int
    """From 1, without the header."""
    line: int
    name: str
    """The row's id, else `row N`."""
    field: str
    """The metric or condition."""
    rule: str
    message: str
    """What is wrong, with the numbers, and what to do."""

    def __str__(self) -> str:
        return visible(f"{self.name}: {self.field}: {self.rule}: {self.message}")

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)
