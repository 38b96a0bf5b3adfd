"""The policy that every job starts from: manifests/kubernetes/job.yaml, or an operator's own file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flagbench.errors import FlagbenchError
from flagbench.launchers.kubernetes.read import read_documents
from flagbench.schema import shipped_manifests

CONTAINER = "flagbench"
"""The container that runs the image; a template may have others beside it."""


@dataclass(frozen=True)
class Template:
    """A Service and a Job without what depends on the run."""

    service: dict[str, Any]
    job: dict[str, Any]


def template_path(manifests: Path) -> Path:
    """The template in a folder of manifests, else flagbench's own."""
    path = manifests / "kubernetes" / "job.yaml"
    return path if path.is_file() else shipped_manifests() / "kubernetes" / "job.yaml"


def read_template(path: Path) -> Template:
    """The template in a file.

    Raises:
        FlagbenchError: (usage) the file cannot be read, or does not hold one Service and one Job with the container.
    """
    documents = read_documents(path)
    kinds = sorted(str(document.get("kind")) for document in documents)
    if kinds != ["Job", "Service"]:
        raise FlagbenchError(
            f"the template {path} holds {', '.join(kinds) or 'nothing'}, not a Service and a Job",
            remedy="start from flagbench's own manifests/kubernetes/job.yaml",
        )
    by_kind = {document["kind"]: document for document in documents}
    for kind, version in (("Service", "v1"), ("Job", "batch/v1")):
        if by_kind[kind].get("apiVersion") != version:
            raise FlagbenchError(
                f"the template {path} has a {kind} that is not of {version}", remedy=f"write apiVersion: {version}"
            )
    return Template(by_kind["Service"], by_kind["Job"])
