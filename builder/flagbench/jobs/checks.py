"""Our own check of a job: what the published schemas miss, and what a benchmark needs beyond a valid document.

The schemas know fields and types. They know neither the values that the API server takes nor what one field means for
another, and nothing of what makes a run comparable. `schemas.py` is the other half.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flagbench.jobs.check_fields import check_fields
from flagbench.jobs.check_job import check_job
from flagbench.jobs.check_links import check_links
from flagbench.jobs.check_pod import check_pod
from flagbench.jobs.check_volumes import check_volumes
from flagbench.jobs.problems import Document, Problem


def check_documents(documents: Sequence[dict[str, Any]]) -> list[Problem]:
    """Everything that is wrong with the documents of one file, in their order. Never raises."""
    views = [Document(data) for data in documents]
    return list(dict.fromkeys(_problems(views)))


def _problems(documents: list[Document]) -> Iterator[Problem]:
    jobs = [document for document in documents if document.kind == "Job"]
    if not jobs:
        yield Problem("the file", (), "there is no Job in it", "make one with `flagbench job CASE:STACK`")
    for document in documents:
        yield from check_fields(document)
    for job in jobs:
        yield from check_job(job)
        yield from check_pod(job)
        yield from check_volumes(job)
        yield from check_links(job, documents)
