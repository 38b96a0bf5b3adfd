"""The connection to the Docker Engine that docker's own settings name, and its errors explained.

Which engine: DOCKER_HOST (with DOCKER_TLS_VERIFY, DOCKER_CERT_PATH), else the context of DOCKER_CONTEXT or of
docker's config.json, else the socket /var/run/docker.sock.
"""

from __future__ import annotations

import errno
import json
import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
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
_CHECK = "check that the engine runs, DOCKER_HOST, the docker context and docker's config.json"
_JOIN = "join its group (`sudo usermod -aG docker $USER`, then log in again), or name another engine with DOCKER_HOST"
_RESTART = "look into its log (`journalctl -u docker`), restart it, or name another engine with DOCKER_HOST"


def address() -> str:
    """Where the engine is, for a person; found by docker-py's rules and without it."""
    if host := os.environ.get("DOCKER_HOST"):
        return redact(host.removeprefix("unix://"))
    context = os.environ.get("DOCKER_CONTEXT")
    with suppress(StopIteration, OSError, ValueError, LookupError, TypeError, RuntimeError):
        folders = (os.environ.get("DOCKER_CONFIG"), Path("~/.docker").expanduser())
        files = [Path(folder, "config.json") for folder in folders if folder]
        settings = json.loads(next(file for file in files if file.exists()).read_bytes())
        context = context or settings["currentContext"]
    return DEFAULT_SOCKET if context in (None, "", "default") else f"the docker context {context}"


def open_client() -> Any:
    """A `docker.DockerClient` for the engine, after checking that it answers and can be used.

    Raises EngineError, with the cause (none there, not allowed, too old, Podman, not answering) and the remedy.
    """
    socket = Path(address())
    if socket.is_absolute() and os.access(socket.parent, os.X_OK) and not socket.exists():
        raise EngineError(f"no container engine answers at {socket}", remedy=_START)
    import docker  # type: ignore[import-untyped]

    with engine_errors("answer"):
        try:
            client = docker.from_env(timeout=ANSWER_SECONDS)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            # An address that is not a URL, a config.json of other types than docker writes.
            raise docker.errors.DockerException(str(error)) from None
    try:
        with engine_errors("answer"):
            version = client.version(api_version=False)
        _require_usable(version)
    except BaseException:
        client.close()
        raise
    client.api.timeout = _REQUEST_SECONDS
    return client


def _require_usable(version: Mapping[str, Any]) -> None:
    from docker.utils import version_lt  # type: ignore[import-untyped]

    if any("podman" in str(part.get("Name", "")).lower() for part in version.get("Components") or ()):
        raise EngineError(
            f"the engine at {address()} is Podman, which flagbench does not support",
            remedy="use Docker Engine 20.10 or later; `flagbench run --via native` needs no engine",
        )
    api = version["ApiVersion"]
    if version_lt(api, OLDEST_API):
        raise EngineError(
            f"the Docker Engine at {address()} is too old: {version.get('Version', 'its version unknown')} "
            f"has API {api}, images need {OLDEST_API}",
            remedy="use Docker Engine 20.10 or later",
        )


@contextmanager
def engine_errors(doing: str) -> Iterator[None]:
    """Turns what docker-py raises while the engine is to be `doing` something into EngineError."""
    import urllib3.exceptions
    from docker.errors import APIError, DockerException  # type: ignore[import-untyped]

    try:
        yield
    except APIError as error:
        reason = redact(str(error.explanation or error))
        raise EngineError(f"the engine could not {doing}: {reason}", remedy=_RESTART) from None
    except (DockerException, OSError, urllib3.exceptions.HTTPError) as error:
        problem, remedy = _explained(error, doing)
        raise EngineError(problem, remedy=remedy) from None


def _explained(error: Exception, doing: str) -> tuple[str, str]:
    """What is wrong, by the system's error beneath, and what to do."""
    import requests.exceptions
    import urllib3.exceptions

    system, where = _system_error(error), address()
    timeouts = (TimeoutError, requests.exceptions.Timeout, urllib3.exceptions.TimeoutError)
    if isinstance(error, timeouts) or isinstance(system, timeouts):
        return f"the container engine at {where} does not answer", _RESTART
    if isinstance(system, PermissionError):
        return f"this user may not use the container engine at {where}", _JOIN
    if system is not None and system.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTSOCK, errno.ENOTDIR):
        return f"no container engine answers at {where}", _START
    return f"the container engine at {where} could not {doing}: {redact(str(system or error))}", _CHECK


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
