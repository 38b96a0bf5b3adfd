"""The connection to the Docker Engine that docker's own settings name, and its errors explained.

Which engine: DOCKER_HOST (with DOCKER_TLS_VERIFY, DOCKER_CERT_PATH), else the context of DOCKER_CONTEXT or of
docker's config.json, else the socket /var/run/docker.sock.
"""

from __future__ import annotations

import errno
import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flagbench.engines.base import EngineError
from flagbench.redaction import redact

# docker-py takes 0.15 s of CPU to import: commands that may need it import these modules, and not it.

DEFAULT_SOCKET = "/var/run/docker.sock"
OLDEST_API = "1.41"
"""Of Docker Engine 20.10, the first that reads `RUN --mount` without a `# syntax` line."""
ANSWER_SECONDS = 10.0
"""How long an engine may take to say which version it is."""
# Saving or committing an image of tens of GB keeps the engine silent for minutes.
_REQUEST_SECONDS = 3600

_START = "start Docker (`systemctl start docker`), or name another engine with DOCKER_HOST"
_CHECK = "check DOCKER_HOST, the docker context and docker's config.json"
_JOIN = "join its group (`sudo usermod -aG docker $USER`, then log in again), or name another engine with DOCKER_HOST"
_RESTART = "look into its log (`journalctl -u docker`), restart it, or name another engine with DOCKER_HOST"


def address(environment: Mapping[str, str] = os.environ) -> str:
    """Where the engine is, for a person."""
    from docker.utils.config import load_general_config  # type: ignore[import-untyped]

    if host := environment.get("DOCKER_HOST"):
        return redact(host.removeprefix("unix://"))
    try:
        settings = load_general_config()
    except RecursionError:  # what from_env then reports
        settings = {}
    current = settings.get("currentContext") if isinstance(settings, dict) else None
    context = environment.get("DOCKER_CONTEXT") or current or "default"
    return DEFAULT_SOCKET if context == "default" else f"the docker context {context}"


def open_client(environment: Mapping[str, str] = os.environ, *, answer_seconds: float = ANSWER_SECONDS) -> Any:
    """A `docker.DockerClient` for the engine, after checking that it answers and can be used.

    Raises EngineError, with the cause (none there, not allowed, too old, Podman, not answering) and the remedy.
    """
    import docker  # type: ignore[import-untyped]

    where = address(environment)
    with engine_errors("answer", where):
        try:
            client = docker.from_env(timeout=answer_seconds, environment=dict(environment))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            # An address that is not a URL, a config.json of other types than docker writes.
            raise docker.errors.DockerException(str(error)) from None
    try:
        with engine_errors("answer", where):
            version = client.version(api_version=False)
        _require_usable(version, where)
    except BaseException:
        client.close()
        raise
    client.api.timeout = _REQUEST_SECONDS
    return client


def _require_usable(version: Mapping[str, Any], where: str) -> None:
    from docker.utils import version_lt  # type: ignore[import-untyped]

    if any("podman" in str(part.get("Name", "")).lower() for part in version.get("Components") or ()):
        raise EngineError(
            f"the engine at {where} is Podman, which flagbench does not support",
            remedy="use Docker Engine 20.10 or later; `flagbench run --via native` needs no engine",
        )
    api = version["ApiVersion"]
    if version_lt(api, OLDEST_API):
        raise EngineError(
            f"the Docker Engine at {where} is too old: {version.get('Version', 'its version unknown')} "
            f"has API {api}, images need {OLDEST_API}",
            remedy="use Docker Engine 20.10 or later",
        )


def unreachable(error: OSError, where: str) -> EngineError:
    """Why an engine does not answer, told apart by the system's error."""
    if isinstance(error, TimeoutError):
        return EngineError(f"the container engine at {where} does not answer", remedy=_RESTART)
    if error.errno in (errno.EACCES, errno.EPERM):
        return EngineError(f"this user may not use the container engine at {where}", remedy=_JOIN)
    if error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTSOCK, errno.ENOTDIR):
        return EngineError(f"no container engine answers at {where}", remedy=_START)
    return EngineError(f"the container engine at {where} cannot be reached: {redact(str(error))}", remedy=_START)


@contextmanager
def engine_errors(doing: str, where: str) -> Iterator[None]:
    """Turns what docker-py raises while the engine is to be `doing` something into EngineError."""
    import requests.exceptions
    import urllib3.exceptions
    from docker.errors import APIError, DockerException  # type: ignore[import-untyped]

    try:
        yield
    except APIError as error:
        reason = redact(str(error.explanation or error))
        raise EngineError(f"the engine could not {doing}: {reason}", remedy=_RESTART) from None
    except (DockerException, OSError, urllib3.exceptions.HTTPError) as error:
        system = _system_error(error)
        if isinstance(error, DockerException) and system is None:
            raise EngineError(
                f"the container engine at {where} cannot be used: {redact(str(error))}", remedy=_CHECK
            ) from None
        timed_out = (requests.exceptions.Timeout, urllib3.exceptions.TimeoutError)
        if isinstance(error, timed_out):
            raise unreachable(TimeoutError(), where) from None
        if system is not None and not isinstance(system, ConnectionResetError | BrokenPipeError):
            raise unreachable(system, where) from None
        raise EngineError(f"the engine at {where} went away before it could {doing}", remedy=_RESTART) from None


def _system_error(error: BaseException | None) -> OSError | None:
    """The system's error beneath the ones that the HTTP libraries wrap around it."""
    while error is not None:
        # A timeout has no number, nor have the errors of the HTTP libraries, which are of this type too. What
        # OpenSSL numbers is not the system's: its 1, a certificate that is not trusted, is EPERM there.
        numbered = isinstance(error, OSError) and error.errno is not None and not isinstance(error, ssl.SSLError)
        if isinstance(error, OSError) and (numbered or isinstance(error, TimeoutError)):
            return error
        error = error.__cause__ or error.__context__
    return None
