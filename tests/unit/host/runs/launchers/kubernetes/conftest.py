"""What the tests of jobs share: requests and their documents, made in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import job_pods
from flagbench.runs.launchers.kubernetes import JobRequest

Request = Callable[..., JobRequest]
Documents = list[dict[str, Any]]


def find(documents: Documents, place: str) -> Any:
    """What stands at `ROOT KEY INDEX ...` in a Service and a Job; None where nothing does."""
    service, job = documents
    pod = job["spec"]["template"]["spec"]
    root, *steps = place.split()
    value: Any = {"service": service, "job": job, "pod": pod, "main": pod["containers"][0]}[root]
    for step in steps:
        if step == "LAST-KEY":
            return [*value][-1]
        value = value[int(step)] if isinstance(value, list) else (value or {}).get(step)
    return value


@pytest.fixture(scope="session")
def request_of() -> Request:
    """`request_of(image, **options)`: a request with options of the run and of the job."""

    def make(of: str = "distilbert:cpu", /, **options: Any) -> JobRequest:
        return job_pods.request_of(of, options)

    return make


@pytest.fixture(scope="session")
def job_of(request_of: Request) -> Callable[..., Documents]:
    """The Service and the Job of such a request, as a plain YAML reader sees them."""

    def make(of: str = "distilbert:cpu", /, **options: Any) -> Documents:
        return job_pods.job_documents(request_of(of, **options))

    return make
