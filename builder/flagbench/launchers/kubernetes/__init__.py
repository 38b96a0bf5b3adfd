"""Runs a case as a job of a Kubernetes cluster: planned as documents, checked, printed for `kubectl apply`."""

from flagbench.launchers.kubernetes.check import check_documents
from flagbench.launchers.kubernetes.documents import job_documents, job_list
from flagbench.launchers.kubernetes.options import JobOptions
from flagbench.launchers.kubernetes.request import JobRequest

__all__ = ["JobOptions", "JobRequest", "check_documents", "job_documents", "job_list"]
