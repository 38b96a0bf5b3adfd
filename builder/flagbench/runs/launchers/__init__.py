"""The launchers: ways to run a case's image or its entrypoint, one per module.

`docker` runs an image in a container, `native` the entrypoint in this Python. `kubernetes` and `slurm` print a job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from flagbench.machine.diagnosis import Diagnosis

if TYPE_CHECKING:
    from flagbench.runs.request import RunRequest


@dataclass(frozen=True)
class LaunchResult:
    """The outcome of a launch."""

    record: bytes
    """The record as the image printed it, a line of JSON; empty on nodes other than node 0, which print none."""
    exit_code: int
    signalled: bool = False
    """Whether this process got a signal to stop during the run, even if the run still ended well."""


class Launcher(Protocol):
    """A way to run a case to its end. A job of a scheduler is not waited for."""

    def health(self) -> Diagnosis:
        """A finding on whether the launcher can be used on this machine; nothing is started."""

    def command(self, request: RunRequest) -> str:
        """The shell command that does the same as `launch`. Nothing is started, and no engine is contacted.

        Raises FlagbenchError (USAGE) for options that cannot be used, or (DATA) for missing folders.
        """

    def check(self, request: RunRequest) -> None:
        """Raise FlagbenchError if the run cannot start, as far as is known without starting it."""

    def launch(self, request: RunRequest) -> LaunchResult:
        """Run to the end and return the outcome. Raises FlagbenchError if nothing could be started."""
