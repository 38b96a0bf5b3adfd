"""The progress of a push or a pull on stderr: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import threading
import time

from flagbench.terminal import visible

_REDRAW_SECONDS = 0.1
_WIDTH = 30


class TransferProgress:
    """Lines, and a bar while bytes are transferred."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._draws = not quiet and sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "")
        self._lock = threading.Lock()
        self._total = self._sent = 0
        self._drawn = 0.0

    def note(self, text: str) -> None:
        """A line of text."""
        if not self._quiet:
            print(visible(text), file=sys.stderr, flush=True)

    def start(self, total: int) -> None:
        """At most `total` bytes are transferred from now on."""
        self._total, self._sent = total, 0

    def expect(self, count: int) -> None:
        """Further bytes are to be transferred."""
        with self._lock:
            self._total += count

    def advance(self, count: int) -> None:
        """Bytes were transferred, or, if negative, in vain."""
        with self._lock:
            self._sent += count
            now = time.monotonic()
            if self._draws and now - self._drawn >= _REDRAW_SECONDS:
                self._drawn = now
                self._draw()

    def end(self) -> None:
        """Remove the bar."""
        if self._draws and self._drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _draw(self) -> None:
        share = min(1.0, max(0.0, self._sent / self._total)) if self._total else 1.0
        bar = "#" * round(share * _WIDTH)
        line = f"  [{bar:<{_WIDTH}}] {share:4.0%} of {self._total / 1e6:,.1f} MB"
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
