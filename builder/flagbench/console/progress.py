"""What a command says on stderr while it works: lines, and a bar while bytes are transferred."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from flagbench.console.terminal import visible


class Progress:
    """Lines and bars; nothing where it is quiet."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet

    @property
    def show(self) -> TextIO | None:
        """Where another command's own progress goes; None: nowhere."""
        if self._quiet:
            return None
        return sys.stderr

    def note(self, text: str) -> None:
        """A line of text."""
        if not self._quiet:
            print(visible(text), file=sys.stderr, flush=True)

    @contextmanager
    def bar(self, text: str, total: int) -> Iterator[Callable[[int], None]]:
        """A bar for a transfer of `total` bytes, or a plain line if stderr is no terminal.

        Yields the function to call with the count of each block.
        """
        if self._quiet:
            yield lambda count: None
            return
        from typer import progressbar  # it takes 0.1 s to import, and a run does not need it

        size = f"{total:,} bytes"
        if total >= 1e5:
            size = f"{total / 1e6:,.1f} MB"
        with progressbar(length=total, label=visible(f"{text} ({size})"), file=sys.stderr) as bar:
            yield bar.update
