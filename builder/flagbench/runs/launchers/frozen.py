"""Ends a run whose main process is frozen: stopped by a signal, or in a paused container.

The main process of a run ends its ranks if they hang, but nobody in the run notices if it is frozen itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from flagbench.errors import FlagbenchError
from flagbench_core.exit_codes import ExitCode

TIMEOUT_SECONDS = 600.0
"""The default of the image side's --timeout."""


class FrozenWatch:
    """Kills a run that has been frozen for as long as it may go without progress."""

    def __init__(
        self, is_frozen: Callable[[], bool], kill: Callable[[], object], *, timeout: float, interval: float = 1.0
    ) -> None:
        """Take what tests and what kills a run, its --timeout, and the seconds between two tests."""
        self._is_frozen = is_frozen
        self._kill = kill
        self._timeout = timeout
        self._interval = interval
        self._looked_at = float("-inf")
        self._frozen_for: float | None = None
        """The seconds for which it has been frozen; None if it was not when it was last tested."""
        self.killed_after: float | None = None
        """The seconds for which the run was frozen when it was killed; None if it was not."""

    def look(self) -> None:
        """Test whether the run is frozen, if it is time to.

        Between two tests at most twice the interval counts. This process may have been stopped too, for much longer,
        for example by Ctrl-Z, and may continue before the run does.
        """
        now = time.monotonic()
        passed = now - self._looked_at
        if self.killed_after is not None or passed < self._interval:
            return
        self._looked_at = now
        if not self._is_frozen():
            self._frozen_for = None
        elif self._frozen_for is None:
            self._frozen_for = 0.0
        else:
            self._frozen_for += min(passed, 2 * self._interval)
            if self._frozen_for >= self._timeout:
                self.killed_after = self._frozen_for
                self._kill()


def is_stopped(pid: int) -> bool:
    """Whether a process of this machine is stopped by a signal (SIGSTOP)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state == "T"


def explain_freeze(seconds: float) -> FlagbenchError:
    """The error for a run that was killed because it had been frozen for this many seconds."""
    return FlagbenchError(
        f"no progress for {seconds:.0f} s: the main process of the run was stopped or paused, and was killed",
        remedy="find out who sent SIGSTOP or paused the container; if that was meant, increase --timeout",
        code=ExitCode.TIMEOUT,
    )
