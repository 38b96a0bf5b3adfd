"""What a pod of a job gets to see, read from the documents: for running the same containers without a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flagbench.errors import FlagbenchError
from flagbench.jobs.expansion import expand
from flagbench.jobs.options import INDEX_VARIABLE
from flagbench.jobs.template import CONTAINER


def pod_names(documents: Sequence[dict[str, Any]]) -> list[str]:
    """The names in the cluster's DNS, `HOST.SERVICE`, of the pods in order of their index."""
    job = _job(documents)
    spec = job["spec"]
    subdomain = spec["template"]["spec"]["subdomain"]
    return [f"{job['metadata']['name']}-{index}.{subdomain}" for index in range(spec["completions"])]


def pod_environment(documents: Sequence[dict[str, Any]], index: int) -> dict[str, str]:
    """The variables of the pod of that index, with `$(NAME)` replaced as Kubernetes does it.

    What comes from Secrets, fields and the cluster itself is not among them.
    """
    found: dict[str, str] = {}
    for entry in _container(documents).get("env", []):
        if "value" in entry:
            found[entry["name"]] = expand(entry["value"], found)
    found[INDEX_VARIABLE] = str(index)
    return found


def pod_arguments(documents: Sequence[dict[str, Any]]) -> list[str]:
    """The words that the image's entrypoint is given, in every pod."""
    environment = pod_environment(documents, 0)
    # The index differs from pod to pod; an argument that names it is left to the cluster.
    del environment[INDEX_VARIABLE]
    return [expand(word, environment) for word in _container(documents)["args"]]


def pod_image(documents: Sequence[dict[str, Any]]) -> str:
    """The image that every pod runs."""
    return str(_container(documents)["image"])


def _job(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    for document in documents:
        if document.get("kind") == "Job":
            return document
    raise FlagbenchError("there is no Job among the documents", remedy="make them with `flagbench job`")


def _container(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    containers: list[dict[str, Any]] = _job(documents)["spec"]["template"]["spec"]["containers"]
    for container in containers:
        if container.get("name") == CONTAINER:
            return container
    raise FlagbenchError(f"the Job has no container called {CONTAINER}", remedy="make it with `flagbench job`")
