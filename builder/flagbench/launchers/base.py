"""What a launcher is given and gives back: a request for one run, and the bytes of its record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from flagbench.catalog.model import Case, Stack
from flagbench.catalog.options import option_words


@dataclass(frozen=True)
class RunRequest:
    """One run of a case on a stack. None leaves a choice to the image."""

    case: Case
    stack: Stack
    nodes: int = 1
    gpus: int = 1
    preset: str | None = None
    division: str | None = None
    precision: str | None = None
    data: str | None = None
    weights: str | None = None
    steps: int | None = None
    max_samples: int | None = None
    full: bool = False
    seed: int | None = None
    settings: tuple[str, ...] = field(default=())
    max_minutes: float | None = None
    timeout: float | None = None
    node_rank: int | None = None
    master: str | None = None
    run_id: str | None = None
    out: str | None = None
    resume: str | None = None

    def arguments(self) -> list[str]:
        """The command line of the image: what it is given after its name."""
        words = [self.case.name, "--nodes", str(self.nodes), "--gpus", str(self.gpus)]
        options = {
            "--preset": self.preset,
            "--division": self.division,
            "--precision": self.precision,
            "--data": self.data,
            "--weights": self.weights,
            "--steps": self.steps,
            "--max-samples": self.max_samples,
            "--seed": self.seed,
            "--max-minutes": self.max_minutes,
            "--timeout": self.timeout,
            "--node-rank": self.node_rank,
            "--master": self.master,
            "--run-id": self.run_id,
            "--out": self.out,
            "--resume": self.resume,
        }
        return words + option_words(options, self.settings, full=self.full)


@dataclass(frozen=True)
class LaunchResult:
    """What came of a launch: the record as the image printed it, and the code it ended with."""

    record: bytes
    """Empty on a node that does not speak (node rank above 0)."""
    exit_code: int


class Launcher(Protocol):
    """A way to run an image, or its entrypoint."""

    def command(self, request: RunRequest) -> str:
        """The line for a shell that does the same; nothing is started or asked.

        Raises FlagbenchError (usage) for options that cannot be used, or (data) for missing folders.
        """

    def launch(self, request: RunRequest) -> LaunchResult:
        """Run to the end.

        Raises FlagbenchError where nothing could be started.
        """
