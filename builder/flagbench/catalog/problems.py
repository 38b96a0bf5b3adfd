"""What is wrong with manifests: one Problem per field, all of a load in one ManifestError."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.schema import FieldPath, field_name

SHOWN = 20
"""Problems an error message lists; the rest are counted."""


@dataclass(frozen=True)
class Problem:
    """One fault of a manifest. `line` counts from 1; `file` is the path as a user would type it."""

    file: str
    line: int
    path: FieldPath
    message: str

    def __str__(self) -> str:
        field = field_name(self.path)
        return f"{self.file}:{self.line}: {f'{field}: ' if field else ''}{self.message}"


class ManifestError(FlagbenchError):
    """Manifests that cannot be used, with every problem found in them."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda p: (p.file, p.line)))
        lines = [str(problem) for problem in self.problems[:SHOWN]]
        if len(self.problems) > SHOWN:
            lines.append(f"... and {len(self.problems) - SHOWN} more")
        if len(self.problems) > 1:
            lines.insert(0, f"the manifests have {len(self.problems)} problems:")
        where = "that line" if len(self.problems) == 1 else "these lines"
        super().__init__(
            "\n  ".join(lines), remedy=f"correct {where} and run `flagbench list` again", code=ExitCode.USAGE
        )
