"""What a job can be made for: launchers with `JobOptions`, `JobRequest`, `render_job`, `submit` and `health`."""

from __future__ import annotations

from enum import Enum

from flagbench.runs.launchers import kubernetes


class Scheduler(str, Enum):
    """A value of `flagbench job --for`."""

    KUBERNETES = "kubernetes"


SCHEDULERS = {Scheduler.KUBERNETES: kubernetes}
