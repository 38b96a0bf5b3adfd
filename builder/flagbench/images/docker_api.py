"""The connection to the Docker Engine that docker's own settings name, and its errors explained.

Which engine: DOCKER_HOST (with DOCKER_TLS_VERIFY, DOCKER_CERT_PATH), else the context of DOCKER_CONTEXT or of
docker's config.json, else the socket /var/run/docker.sock.

docker-py takes 0.15 s of CPU time to import. So the functions here import it, and not the module: every command
imports the module, and few need an engine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flagbench.images.docker_errors import EngineError
from flagbench_core.redaction import redact

DEFAULT_SOCKET = "/var/run/docker.sock"
"""The engine's socket without any settings."""
OLDEST_API = "1.41"
"""The API version of Docker Engine 20.10, the first that supports `RUN --mount` without a `# syntax` line."""
VERSION_SECONDS = 10.0
"""How long an engine may take to answer the question for its version."""
_REQUEST_SECONDS = 3600
"""How long an engine may take to answer any other request: saving or committing an image of tens of GB keeps it
silent for minutes."""

_CHECK_REMEDY = (
    "start Docker (`systemctl start docker`), check its log (`journalctl -u docker`), or name another engine with "
    "DOCKER_HOST"
)
_JOIN_REMEDY = (
    "join its group (`sudo usermod -aG docker $USER`, then log in again), or name another engine with DOCKER_HOST"
)


def describe_address() -> str:
    """Describe for a person where the engine is: its socket, its URL without credentials, or a docker context."""
    from docker.context.config import get_current_context_name  # type: ignore[import-untyped]

    host = os.environ.get("DOCKER_HOST")
    if host:
        return redact(host.removeprefix("unix://"))
    context = os.environ.get("DOCKER_CONTEXT") or get_current_context_name()
    if context == "default":
        return DEFAULT_SOCKET
    return f"the docker context {context}"


def open_client() -> Any:
    """Connect a `docker.DockerClient` to the engine, and check that the engine answers and can be used.

    Raises EngineError if no engine answers, if it may not be used, or if it is Podman or too old.
    """
    import docker  # type: ignore[import-untyped]
    from docker.utils import version_lt  # type: ignore[import-untyped]

    with engine_errors("answer"):
        try:
            client = docker.from_env(timeout=VERSION_SECONDS)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            # DOCKER_HOST is not a URL, or the types of values in config.json are not those that docker writes.
            raise docker.errors.DockerException(str(error)) from None
    try:
        with engine_errors("answer"):
            version = client.version(api_version=False)
        kind = "Podman" if "Podman" in str(version) else f"Docker Engine {version.get('Version', '')}"
        if kind == "Podman" or version_lt(version["ApiVersion"], OLDEST_API):
            raise EngineError(
                f"the engine at {describe_address()} is {kind}, and images need Docker Engine 20.10 or later",
                remedy="name another engine with DOCKER_HOST; `flagbench run --via native` needs none",
            )
    except BaseException:  # KeyboardInterrupt included: the connection is closed in any case.
        client.close()
        raise
    client.api.timeout = _REQUEST_SECONDS
    return client


@contextmanager
def engine_errors(doing: str) -> Iterator[None]:
    """Turn what docker-py raises into EngineError.

    Args:
        doing: what the engine is asked to do in the `with` block, to follow `the engine could not`.
    """
    import urllib3.exceptions
    from docker.errors import DockerException  # type: ignore[import-untyped]

    try:
        yield
    except (DockerException, OSError, urllib3.exceptions.HTTPError) as error:
        cause = _find_cause(error)
        explanation = getattr(cause, "explanation", None)
        if explanation:
            problem = f"the engine could not {doing}: {redact(str(explanation))}"
            raise EngineError(problem, remedy=_CHECK_REMEDY) from None
        remedy = _CHECK_REMEDY
        if isinstance(cause, PermissionError):
            remedy = _JOIN_REMEDY
        problem = f"no container engine answers at {describe_address()}: {redact(str(cause))}"
        raise EngineError(problem, remedy=remedy) from None


def _find_cause(error: BaseException) -> BaseException:
    """Find the engine's own answer, or the system's error, beneath what the HTTP libraries wrap around it.

    The engine's answer is a docker-py exception with an `explanation`.
    """
    while not getattr(error, "explanation", None):
        inner = error.__cause__ or error.__context__
        if inner is None:
            return error
        error = inner
    return error
