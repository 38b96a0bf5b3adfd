"""Jobs for a cluster: a request checked, rendered as documents, and documents checked that a person edited."""

from flagbench.jobs.arguments import ImageArguments
from flagbench.jobs.checks import check_documents
from flagbench.jobs.kubernetes import job_documents, job_list
from flagbench.jobs.pods import pod_arguments, pod_environment, pod_image, pod_names
from flagbench.jobs.request import JobRequest

__all__ = [
    "ImageArguments",
    "JobRequest",
    "check_documents",
    "job_documents",
    "job_list",
    "pod_arguments",
    "pod_environment",
    "pod_image",
    "pod_names",
]
