"""Ways to run a case's image or its entrypoint, one adapter a file or a package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from flagbench.machine.diagnosis import Diagnosis

if TYPE_CHECKING:
    from flagbench.runs.request import RunRequest


@dataclass(frozen=True)
class LaunchResult:
    """Outcome of a launch: the record as the image printed it, and the exit code."""

    record: bytes
    """Empty on other nodes than node 0, which print none."""
    exit_code: int
    signalled: bool = False
    """Whether this process was asked to stop meanwhile, even where the run still ended well."""


class Launcher(Protocol):
    """A way to run a case to its end. `launchers.kubernetes` submits instead, and does not wait."""

    def health(self) -> Diagnosis:
        """Whether it can be used here; starts nothing."""

    def command(self, request: RunRequest) -> str:
        """The plan: the shell command that does the same; nothing is started or asked.

        Raises FlagbenchError (usage) for options that cannot be used, or (data) for missing folders.
        """

    def check(self, request: RunRequest) -> None:
        """Raise FlagbenchError if it is known before a launch that the run cannot start."""

    def launch(self, request: RunRequest) -> LaunchResult:
        """Run to the end. Raises FlagbenchError if nothing could be started."""
