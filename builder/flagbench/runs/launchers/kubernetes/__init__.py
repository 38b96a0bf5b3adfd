"""A run as a job of Kubernetes: its options, the request, the template filled in, and kubectl."""

from flagbench.runs.launchers.kubernetes.kubectl import health, submit
from flagbench.runs.launchers.kubernetes.options import JobOptions
from flagbench.runs.launchers.kubernetes.render import render_job
from flagbench.runs.launchers.kubernetes.request import JobRequest

__all__ = ["JobOptions", "JobRequest", "health", "render_job", "submit"]
