"""What the tests of jobs share: requests made in one line, good jobs by name, and Kubernetes' schemas."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flagbench.catalog.load import load_catalog
from flagbench.catalog.lookup import resolve_image
from flagbench.catalog.model import Catalog
from flagbench.jobs import ImageArguments, JobRequest, job_documents
from flagbench.jobs.schemas import schemas_installed
from flagbench.jobs.template import Template, read_template, template_path

MANIFESTS = Path(__file__).parents[4] / "manifests"

Request = Callable[..., JobRequest]
Documents = list[dict[str, Any]]


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return load_catalog(MANIFESTS)


@pytest.fixture(scope="session")
def template() -> Template:
    return read_template(template_path(MANIFESTS))


@pytest.fixture(scope="session")
def request_of(catalog: Catalog) -> Request:
    """A request for an image; options of the image itself go in `arguments`, a mapping."""

    def make(of: str = "distilbert:cpu", /, **options: Any) -> JobRequest:
        case, stack = resolve_image(of, catalog)
        arguments = ImageArguments(**options.pop("arguments", {}))
        return JobRequest(case, stack, arguments=arguments, **{"run_id": "run-1", **options})

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
    if not schemas_installed():
        (pytest.fail if os.environ.get("CI") else pytest.skip)("this test needs kubernetes-validate")
