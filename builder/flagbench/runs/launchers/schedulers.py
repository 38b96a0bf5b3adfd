"""The schedulers that `flagbench job --for` can make a job for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from flagbench.runs.launchers import kubernetes, slurm
from flagbench.runs.launchers.job_request import JobRequest


class Scheduler(str, Enum):
    """A value of `flagbench job --for`."""

    KUBERNETES = "kubernetes"
    SLURM = "slurm"


@dataclass(frozen=True)
class JobMaker:
    """How a scheduler's jobs are made."""

    request: type[JobRequest]
    """Checks the options of a job."""
    render: Callable[[Any], str]
    """Returns the text of a request's job."""
    submit: Callable[[str], str]
    """Submits this text, and returns what the scheduler's program printed. Raises FlagbenchError."""


JOB_MAKERS = {
    Scheduler.KUBERNETES: JobMaker(kubernetes.KubernetesRequest, kubernetes.render_job, kubernetes.submit),
    Scheduler.SLURM: JobMaker(slurm.SlurmRequest, slurm.render_job, slurm.submit),
}
