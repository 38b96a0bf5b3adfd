"""What the tests of jobs share: requests made in one line, good jobs by name, and Kubernetes' schemas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from flagbench.catalog.load import load_catalog
from flagbench.catalog.lookup import resolve_image
from flagbench.catalog.model import Catalog
from flagbench.launchers.kubernetes.documents import Template, job_documents, read_template, template_path
from flagbench.launchers.kubernetes.options import JobOptions
from flagbench.launchers.kubernetes.request import JobRequest
from flagbench.launchers.kubernetes.schemas import schemas_installed
from flagbench.request import RunOptions
from running import need

MANIFESTS = Path(__file__).parents[5] / "manifests"

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
        if isinstance(value, list):
            value = len(value) if step == "LENGTH" else value[int(step)]
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return load_catalog(MANIFESTS)


@pytest.fixture(scope="session")
def template() -> Template:
    return read_template(template_path(MANIFESTS))


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
def job_of(request_of: Request, template: Template) -> Callable[..., Documents]:
    """The documents of such a request."""

    def make(of: str = "distilbert:cpu", /, **options: Any) -> Documents:
        return job_documents(request_of(of, **options), template)

    return make


@pytest.fixture(scope="session")
def schemas() -> None:
    """For tests that need Kubernetes' schemas; in CI, which installs them, their absence is a failure."""
    need(schemas_installed(), "kubernetes-validate")


@pytest.fixture
def no_kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH of one empty folder, which is returned: the tests ask no server that this machine may know."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder
