"""Kubernetes' own schemas, where they are installed: every field and type, strictly."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from textwrap import shorten
from typing import Any

from flagbench.launchers.kubernetes.problems import Document, Problem

VERSIONS = ("1.35", "1.36", "1.37")
"""The releases of Kubernetes that a job is checked against."""
_PACKAGE = "kubernetes_validate"


def schemas_installed() -> bool:
    """Whether the package with the schemas is there (`flagbench[lint]` brings it)."""
    return find_spec(_PACKAGE) is not None


def check_schemas(documents: Sequence[dict[str, Any]], versions: Sequence[str] = VERSIONS) -> list[Problem]:
    """The first violation of each document, by release; [] where there is none. Custom resources have no schema.

    Strict: a field that the schema does not know is a violation, too. Otherwise a misspelt one would pass.
    """
    # Imported here and by name: it is optional, and has no types.
    kubernetes_validate = import_module(_PACKAGE)

    problems = []
    for data in documents:
        document = Document(data)
        if not document.kind or not isinstance(data.get("apiVersion"), str):
            problems.append(document.problem(("kind",), "kind or apiVersion is missing", "write both"))
            continue
        for version in versions:
            try:
                kubernetes_validate.validate(data, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                message = f"{shorten(error.message, 200, placeholder='...')} (schema of Kubernetes {version})"
                problem = document.problem(tuple(error.absolute_path), message, "see the API reference of this field")
                problems.append(problem)
                # The next releases would mostly say the same again.
                break
            except kubernetes_validate.SchemaNotFoundError:
                break
    return problems
