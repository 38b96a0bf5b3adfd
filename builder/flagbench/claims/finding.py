"""What a rule finds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from flagbench.terminal import visible


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
