"""What the tests of jobs share: requests and their documents, made in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from flagbench.manifests.load import load_catalog
from flagbench.manifests.lookup import resolve_image
from flagbench.manifests.model import Catalog
from flagbench.runs.launchers.kubernetes.options import JobOptions
from flagbench.runs.launchers.kubernetes.request import JobRequest
from flagbench.runs.request import RunOptions
from job_pods import job_documents

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
def catalog() -> Catalog:
    return load_catalog()


@pytest.fixture(scope="session")
def request_of(catalog: Catalog) -> Request:
    """`request_of(image, **options)`: a request with options of the run and of the job."""
    of_run = {field.name for field in fields(RunOptions)}

    def make(of: str = "distilbert:cpu", /, **options: Any) -> JobRequest:
        run = {name: options.pop(name) for name in of_run & set(options)}
        return JobRequest(
            *resolve_image(of, catalog), RunOptions(**{"run_id": "run-1", **run}), JobOptions(**options)
        )

    return make


@pytest.fixture(scope="session")
def job_of(request_of: Request) -> Callable[..., Documents]:
    """The Service and the Job of such a request, as a plain YAML reader sees them."""

    def make(of: str = "distilbert:cpu", /, **options: Any) -> Documents:
        return job_documents(request_of(of, **options))

    return make
