"""The progress of a push or a pull on stderr: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from flagbench.terminal import visible


class TransferProgress:
    """Lines, and a bar while bytes are transferred."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet

    def note(self, text: str) -> None:
        """A line of text."""
        if not self._quiet:
            print(visible(text), file=sys.stderr, flush=True)

    @contextmanager
    def bar(self, text: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show that `total` bytes are transferred; gives what to call with each count, from any thread."""
        if self._quiet:
            yield lambda count: None
            return
        from typer import progressbar  # it takes 0.1 s to import, and a run does not need it

        lock = Lock()
        size = f"{total / 1e6:,.1f} MB" if total >= 1e5 else f"{total:,} bytes"
        with progressbar(length=total, label=visible(f"{text} ({size})"), file=sys.stderr) as shown:

            def advance(count: int) -> None:
                with lock:
                    shown.update(count)

            yield advance
