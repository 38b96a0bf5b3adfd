"""Jobs of every kind are valid by Kubernetes' own schemas, strictly: a field that they do not know is an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from job_pods import JOBS

from .conftest import Documents

kubernetes_validate = pytest.importorskip("kubernetes_validate")


@pytest.mark.parametrize("version", ["1.35", "1.36", "1.37"])
def test_jobs_are_valid(version: str, job_of: Callable[..., Documents]) -> None:
    for of, options in JOBS.values():
        for document in job_of(of, **options):
            kubernetes_validate.validate(document, version, strict=True)
