"""Progress on stderr: a bar on a terminal, a line now and then elsewhere."""

import math
import sys
import time
from typing import Optional, TextIO

from flagbench_cases.spool import Progress

WIDTH = 28
QUIET_SECONDS = 10.0


class Bar:
    """Draws what rank 0's heartbeat says."""

    def __init__(self, stream: Optional[TextIO] = None) -> None:
        self.stream = stream if stream is not None else sys.stderr
        self.live = self.stream.isatty()
        self._drawn = False
        self._phase = ""
        self._last = float("-inf")

    def show(self, progress: Optional[Progress]) -> None:
        """Draw the state; on a terminal in place, elsewhere at a new phase and every ten seconds."""
        if progress is None:
            return
        clock = time.monotonic()
        if not self.live and progress.phase == self._phase and clock - self._last < QUIET_SECONDS:
            return
        self._phase, self._last = progress.phase, clock
        text = render(progress)
        if self.live:
            self._write("\r\x1b[2K" + text)
            self._drawn = True
        else:
            self._write("flagbench: %s\n" % text)

    def end(self) -> None:
        """Leave the line."""
        if self._drawn:
            self._write("\r\x1b[2K")
            self._drawn = False

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):
            self.live = False


def render(progress: Progress) -> str:
    """`train  [#####.....]  120/310  loss 0.4321`."""
    text = "%-7s" % progress.phase
    if progress.total:
        filled = int(WIDTH * min(1.0, progress.done / progress.total))
        text += "[%s%s] %d/%d" % ("#" * filled, "." * (WIDTH - filled), progress.done, progress.total)
    if math.isfinite(progress.loss):
        text += "  loss %.4f" % progress.loss
    return text
