"""The policy that every job starts from: manifests/kubernetes/job.yaml, or an operator's own file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flagbench.errors import FlagbenchError
from flagbench.launchers.kubernetes.read import read_documents
from flagbench.schema import shipped_manifests


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
    by_kind = {f"{document.get('apiVersion')} {document.get('kind')}": document for document in documents}
    if len(documents) != 2 or set(by_kind) != {"batch/v1 Job", "v1 Service"}:
        raise FlagbenchError(
            f"the template {path} holds {', '.join(by_kind) or 'nothing'}, not one v1 Service and one batch/v1 Job",
            remedy="start from flagbench's own manifests/kubernetes/job.yaml",
        )
    return Template(by_kind["v1 Service"], by_kind["batch/v1 Job"])
