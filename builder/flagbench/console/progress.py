"""Shows the progress of a command on stderr: lines, and a bar while bytes are transferred."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from flagbench.console.terminal import visible


class Progress:
    """Prints lines and bars, or nothing if it is quiet."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet

    @property
    def show(self) -> TextIO | None:
        """The stream for the progress of another program; None if it should not be shown."""
        if self._quiet:
            return None
        return sys.stderr

    def note(self, text: str) -> None:
        """Print a line of text."""
        if not self._quiet:
            print(visible(text), file=sys.stderr, flush=True)

    @contextmanager
    def bar(self, text: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a bar for a transfer of `total` bytes, or a line if stderr is not a terminal.

        Yields a function that must be called with the number of bytes of each block that is transferred.
        """
        if self._quiet:
            yield lambda count: None
            return
        from typer import progressbar  # takes 0.1 s to import, and most commands do not need it

        size = f"{total:,} bytes"
        if total >= 1e5:
            size = f"{total / 1e6:,.1f} MB"
        with progressbar(length=total, label=visible(f"{text} ({size})"), file=sys.stderr) as bar:
            yield bar.update
