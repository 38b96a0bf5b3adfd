"""Ways to run a case's image or its entrypoint, one adapter a file or a package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from flagbench.request import RunRequest


@dataclass(frozen=True)
class LaunchResult:
    """Outcome of a launch: the record as the image printed it, and the exit code."""

    record: bytes
    """Empty on other nodes than node 0, which print none."""
    exit_code: int


class Launcher(Protocol):
    """A way to run an image, or its entrypoint."""

    def command(self, request: RunRequest) -> str:
        """The shell command that does the same; nothing is started or asked.

        Raises FlagbenchError (usage) for options that cannot be used, or (data) for missing folders.
        """

    def launch(self, request: RunRequest) -> LaunchResult:
        """Run to the end.

        Raises FlagbenchError where nothing could be started.
        """
