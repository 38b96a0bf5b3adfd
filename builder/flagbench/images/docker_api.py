"""The connection to the Docker Engine that docker's own settings name, and its errors explained.

Which engine: DOCKER_HOST (with DOCKER_TLS_VERIFY, DOCKER_CERT_PATH), else the context of DOCKER_CONTEXT or of
docker's config.json, else the socket /var/run/docker.sock.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flagbench.images.docker_errors import EngineError
from flagbench_core.redaction import redact

# docker-py takes 0.15 s of CPU to import: commands that may need it import these modules, and not it.

DEFAULT_SOCKET = "/var/run/docker.sock"
OLDEST_API = "1.41"
"""Of Docker Engine 20.10, the first that reads `RUN --mount` without a `# syntax` line."""
VERSION_SECONDS = 10.0
"""How long an engine may take to say which version it is."""
# Saving or committing an image of tens of GB keeps the engine silent for minutes.
_REQUEST_SECONDS = 3600

_CHECK = (
    "start Docker (`systemctl start docker`), check its log (`journalctl -u docker`), or name another engine with "
    "DOCKER_HOST"
)
_JOIN = "join its group (`sudo usermod -aG docker $USER`, then log in again), or name another engine with DOCKER_HOST"


def address() -> str:
    """Where the engine is, for a person."""
    from docker.context.config import get_current_context_name  # type: ignore[import-untyped]

    if host := os.environ.get("DOCKER_HOST"):
        return redact(host.removeprefix("unix://"))
    context = os.environ.get("DOCKER_CONTEXT") or get_current_context_name()
    return DEFAULT_SOCKET if context == "default" else f"the docker context {context}"


def open_client() -> Any:
    """A `docker.DockerClient` for the engine, after checking that it answers and can be used.

    Raises EngineError, with the cause (none there, not allowed, too old, Podman, not answering) and the remedy.
    """
    import docker  # type: ignore[import-untyped]
    from docker.utils import version_lt  # type: ignore[import-untyped]

    with engine_errors("answer"):
        try:
            client = docker.from_env(timeout=VERSION_SECONDS)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            # An address that is not a URL, a config.json of other types than docker writes.
            raise docker.errors.DockerException(str(error)) from None
    try:
        with engine_errors("answer"):
            version = client.version(api_version=False)
        kind = "Podman" if "Podman" in str(version) else f"Docker Engine {version.get('Version', '')}"
        if kind == "Podman" or version_lt(version["ApiVersion"], OLDEST_API):
            raise EngineError(
                f"the engine at {address()} is {kind}, and images need Docker Engine 20.10 or later",
                remedy="name another engine with DOCKER_HOST; `flagbench run --via native` needs none",
            )
    except BaseException:
        client.close()
        raise
    client.api.timeout = _REQUEST_SECONDS
    return client


@contextmanager
def engine_errors(doing: str) -> Iterator[None]:
    """Turns what docker-py raises while the engine is to be `doing` something into EngineError."""
    import urllib3.exceptions
    from docker.errors import DockerException  # type: ignore[import-untyped]

    try:
        yield
    except (DockerException, OSError, urllib3.exceptions.HTTPError) as error:
        cause = _cause(error)
        if explanation := getattr(cause, "explanation", None):
            raise EngineError(f"the engine could not {doing}: {redact(str(explanation))}", remedy=_CHECK) from None
        remedy = _JOIN if isinstance(cause, PermissionError) else _CHECK
        problem = f"no container engine answers at {address()}: {redact(str(cause))}"
        raise EngineError(problem, remedy=remedy) from None


def _cause(error: BaseException) -> BaseException:
    """The engine's own answer, or the system's error, beneath what the HTTP libraries wrap around it."""
    while not getattr(error, "explanation", None) and (inner := error.__cause__ or error.__context__):
        error = inner
    return error
