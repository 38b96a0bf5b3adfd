"""The progress of a build on stderr: the client's own and a few lines around it, or failures alone."""

from __future__ import annotations

import sys
from typing import TextIO

from flagbench.build.results import TierResult
from flagbench.engines.base import BuildFailed


class Progress:
    """Messages of a build."""

    def __init__(self, *, quiet: bool = False) -> None:
        """`quiet`: only failures are shown."""
        self._quiet = quiet

    @property
    def show(self) -> TextIO | None:
        """Where the client's own progress goes; None: nowhere."""
        return None if self._quiet else sys.stderr

    def note(self, text: str) -> None:
        """A line of text."""
        if not self._quiet:
            print(text, file=sys.stderr, flush=True)

    def built(self, tier: TierResult) -> None:
        """A tier was built."""
        self.note(f"{tier.tags[0]} built in {tier.seconds:.1f}s; also {', '.join(tier.tags[1:])}")

    def failed(self, error: BuildFailed) -> None:
        """The failed step and its last lines, where the client's output was not shown."""
        if self._quiet and error.step:
            print(f"failed: {error.step}", *(f"  | {line}" for line in error.lines), sep="\n", file=sys.stderr)
