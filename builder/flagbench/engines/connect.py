"""The connection to the Docker Engine that docker's own settings name, and its failures in plain words.

Which engine: DOCKER_HOST (with DOCKER_TLS_VERIFY, DOCKER_CERT_PATH), else the context of DOCKER_CONTEXT or of
docker's config.json, else the socket /var/run/docker.sock.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from flagbench.engines import peek
from flagbench.engines.base import EngineError
from flagbench.files import TEXT_BYTES, expanded, read_file
from flagbench.redaction import redact

DEFAULT_SOCKET = "/var/run/docker.sock"
OLDEST_API = (1, 41)
"""Of Docker Engine 20.10. BuildKit is in engines since 18.09, but what those read of a Dockerfile without a
`# syntax` line does not include `RUN --mount`."""
ANSWER_SECONDS = 10.0
"""How long an engine may take to say which version it is."""
# Saving or committing an image of tens of GB keeps the engine silent for minutes.
_REQUEST_SECONDS = 3600

_START = "start Docker (`systemctl start docker`), or name another engine with DOCKER_HOST"
_CHECK = "check DOCKER_HOST, the docker context and docker's config.json"
_JOIN = "join its group (`sudo usermod -aG docker $USER`, then log in again), or name another engine with DOCKER_HOST"
_RESTART = "look into its log (`journalctl -u docker`), restart it, or name another engine with DOCKER_HOST"


class Connection:
    """An engine, asked directly where it has a socket here, and through docker-py, imported when it is needed."""

    def __init__(
        self, environment: Mapping[str, str] = os.environ, *, answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        self._environment = environment
        self._answer_seconds = answer_seconds
        self.socket = local_socket(environment)
        """The path of its Unix socket; None where it is another machine's, or only docker-py can say."""

    @property
    def where(self) -> str:
        """The engine's address, for a person."""
        if self.socket:
            return self.socket
        context = self._environment.get("DOCKER_CONTEXT")
        return redact(self._environment.get("DOCKER_HOST") or (f"the docker context {context or 'in use'}"))

    @cached_property
    def client(self) -> Any:
        """The `docker.DockerClient`; its `api` is the low-level client. Raises EngineError."""
        import docker  # type: ignore[import-untyped]

        with engine_errors("answer", self.where):
            try:
                client = docker.from_env(timeout=self._answer_seconds, environment=dict(self._environment))
            except (ValueError, TypeError, AttributeError, RecursionError) as error:
                # An address that is no URL, a config.json of other types than docker writes.
                raise docker.errors.DockerException(str(error)) from None
        client.api.timeout = _REQUEST_SECONDS
        return client

    def version(self) -> dict[str, Any]:
        """What the engine says of itself. Raises EngineError, also for an engine without BuildKit."""
        got = self._peek("/version")
        version = got[1] if got and got[0] == 200 else self._client_version()
        spoken = str(version.get("ApiVersion", "")) if isinstance(version, dict) else ""
        numbers = tuple(int(part) for part in spoken.split(".") if part.isdigit())
        if len(numbers) != 2:
            raise EngineError(f"what answers at {self.where} is no Docker Engine", remedy=_START)
        if numbers < OLDEST_API:
            raise EngineError(
                f"the Docker Engine at {self.where} is too old: {version.get('Version', 'its version unknown')} "
                f"speaks API {spoken}, images need {OLDEST_API[0]}.{OLDEST_API[1]}",
                remedy="use Docker Engine 20.10 or later",
            )
        return dict(version)

    def image(self, ref: str) -> dict[str, Any] | None:
        """The engine's description of an image; None where it has none. Raises EngineError."""
        got = self._peek(f"/images/{ref}/json")
        if got and got[0] == 404:
            return None
        if got and got[0] == 200 and isinstance(got[1], dict):
            return got[1]
        from docker.errors import ImageNotFound  # type: ignore[import-untyped]

        with engine_errors(f"describe the image {ref}", self.where):
            try:
                return dict(self.client.api.inspect_image(ref))
            except ImageNotFound:
                return None

    def close(self) -> None:
        """Close what is open."""
        if "client" in self.__dict__:
            self.client.close()

    def _peek(self, path: str) -> tuple[int, Any] | None:
        if self.socket is None:
            return None
        try:
            return peek.get(path, self.socket, self._answer_seconds)
        except OSError as error:
            raise unreachable(error, self.where) from None
        except ValueError:
            return None  # an answer that docker-py may understand, or will complain about

    def _client_version(self) -> Any:
        with engine_errors("answer", self.where):
            return self.client.api.version(api_version=False)


def local_socket(environment: Mapping[str, str]) -> str | None:
    """The Unix socket that docker's settings name; None where they name a context, or anything but a socket."""
    if host := environment.get("DOCKER_HOST"):
        path = host.strip().removeprefix("unix://")
        return path if path.startswith("/") else None
    if context := environment.get("DOCKER_CONTEXT"):
        return DEFAULT_SOCKET if context == "default" else None
    folder = environment.get("DOCKER_CONFIG")
    file = (Path(folder) if folder else expanded("~/.docker")) / "config.json"
    try:
        settings = json.loads(read_file(file, TEXT_BYTES))
    except (OSError, ValueError, RecursionError):
        return DEFAULT_SOCKET  # as docker-py does: no file, or one of the time before JSON
    current = settings.get("currentContext") if isinstance(settings, dict) else None
    return DEFAULT_SOCKET if current in (None, "", "default") else None


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
    from docker.errors import APIError, DockerException

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


def _system_error(error: BaseException) -> OSError | None:
    """The system's error beneath the ones that the HTTP libraries wrap around it."""
    import ssl

    seen: set[int] = set()
    queue: list[BaseException] = [error]
    while queue:
        one = queue.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        # A timeout has no number, nor have the errors of the HTTP libraries, which are of this type too. What
        # OpenSSL numbers is not the system's: its 1, a certificate that is not trusted, is EPERM there.
        numbered = isinstance(one, OSError) and one.errno is not None and not isinstance(one, ssl.SSLError)
        if isinstance(one, OSError) and (numbered or isinstance(one, TimeoutError)):
            return one
        inner = (one.__cause__, one.__context__, getattr(one, "reason", None), *one.args)
        queue += [each for each in inner if isinstance(each, BaseException)]
    return None
