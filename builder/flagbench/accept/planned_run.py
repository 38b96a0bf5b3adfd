"""A run that an acceptance plans: the roofs (a device's rates without a model), a case, or the soak."""

from __future__ import annotations

from dataclasses import dataclass

from flagbench.manifests.model import Case
from flagbench.runs.target import Target

START_SECONDS = {"cpu": 10.0, "cuda": 20.0}
"""Seconds that a run takes in addition to its steps, by kind of device: until the first step, and from the last step
until its record. On an H100, 14 to 17 s were measured."""


@dataclass(frozen=True)
class PlannedRun:
    """A planned run of an acceptance."""

    target: Target
    seconds: float
    """The time that the run should take, start-up included."""
    why: str
    """Why this run is made, as the certificate states it."""
    soak: bool = False
    """Whether it is the soak, whose time is in addition to `--minutes`."""

    @property
    def case(self) -> Case:
        """The case that it runs."""
        return self.target.request.case
