"""One run of an acceptance, before it runs."""

from __future__ import annotations

from dataclasses import dataclass

from flagbench.manifests.model import Case
from flagbench.runs.target import Target

START_SECONDS = {"cpu": 10.0, "cuda": 20.0}
"""Seconds of a run from its command to its first step, and from its last step to its record, by kind of device: 14 to
17 s on an H100."""


@dataclass(frozen=True)
class Part:
    """One run of an acceptance."""

    target: Target
    seconds: float
    """The time that the run should take, start-up included."""
    why: str
    """Why this run is made, as the certificate states it."""
    soak: bool = False
    """Whether it is the soak, which has a time of its own."""

    @property
    def case(self) -> Case:
        """The case that it runs."""
        return self.target.request.case
