"""The schedulers that `flagbench job --for` can make a job for.

Each is a module with `JobOptions`, `JobRequest`, `render_job`, `submit` and `health`.
"""

from __future__ import annotations

from enum import Enum

from flagbench.runs.launchers import kubernetes


class Scheduler(str, Enum):
    """A value of `flagbench job --for`."""

    KUBERNETES = "kubernetes"


SCHEDULERS = {Scheduler.KUBERNETES: kubernetes}
