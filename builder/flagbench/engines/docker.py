"""Docker Engine over its API: BuildKit builds without the docker command or a plugin.

`POST /build?version=2` builds with the engine's own BuildKit from a tar in the request's body. From 20.10 on that
reads `RUN --mount` without fetching a frontend for it. Two things that need a session with the client are not to
be had this way: mounting secrets, and credentials for a base image, which is therefore pulled first.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from flagbench.engines.base import (
    BuildEvent,
    BuildFailed,
    BuildRequest,
    EngineError,
    ImageInfo,
    Resources,
    StepDone,
    StepProgress,
    StepStarted,
)
from flagbench.engines.connect import Connection, engine_errors
from flagbench.images import is_ours
from flagbench.redaction import redact

# What builds and pulls take, docker-py first, is imported inside the methods: most often an image is only looked at.

_CHUNK = 2**20


class DockerEngine:
    """The Docker Engine at the other end of a connection."""

    name = "docker"

    def __init__(self, connection: Connection | None = None) -> None:
        self._connection = connection or Connection()

    @property
    def _api(self) -> Any:
        return self._connection.client.api

    def health(self) -> str:
        """One line on which engine it is. Raises EngineError where it cannot be used."""
        version = self._connection.version()
        what = " ".join(("Docker Engine", str(version.get("Version", "")))).strip()
        platform = f"{version.get('Os', '')}/{version.get('Arch', '')}"
        return f"{what} ({platform}, API {version['ApiVersion']}) at {self._connection.where}"

    def inspect(self, ref: str) -> ImageInfo | None:
        """The image of that name or id, or None."""
        raw = self._connection.image(ref)
        return None if raw is None else image_info(raw)

    def pull(
        self, ref: str, *, platform: str | None = None, report: Callable[[BuildEvent], None] | None = None
    ) -> ImageInfo:
        """Pull an image with the credentials of docker's config.json and its helpers."""
        from flagbench.engines.stream import failure

        if ref.startswith("sha256:"):
            raise BuildFailed(
                f"the engine has no image {ref}, and an id cannot be pulled",
                remedy="load the image with `docker load`, or name one by its repository",
            )
        if is_ours(ref):
            raise BuildFailed(
                f"the engine has no image {ref}, and no registry is asked for an image of flagbench's own",
                remedy="build it with `flagbench build`, or load it with `docker load`",
            )
        tell = report or (lambda event: None)
        step = f"pull {ref}"
        tell(StepStarted(step, step))
        with engine_errors(step, self._connection.where):
            for message in self._pulling(ref, platform):
                if error := failure(message):
                    raise _not_pulled(ref, error)
                detail = message.get("progressDetail") or {}
                if "current" in detail:
                    what = f"{message.get('id', '')}: {message.get('status', '')}"
                    tell(StepProgress(step, what, int(detail["current"]), int(detail.get("total") or 0)))
        image = self.inspect(ref)
        if image is None:
            raise _not_pulled(ref, "the engine does not have it after pulling it")
        tell(StepDone(step, step, seconds=0.0, cached=False))
        return image

    def build(self, request: BuildRequest) -> Iterator[BuildEvent]:
        """Build; see `Engine.build`."""
        from docker.errors import APIError  # type: ignore[import-untyped]

        from flagbench.engines.proxies import proxy_args
        from flagbench.engines.stream import read_build

        api = self._api
        with engine_errors("build", self._connection.where):
            response = api._post(
                api._url("/build"),
                data=_readable(request.context),
                params=build_params(request, proxy_args(os.environ, api._proxy_configs.get_environment())),
                headers={"Content-Type": "application/tar"},
                stream=True,
                timeout=None,  # a compiler may be silent for an hour
            )
            try:
                api._raise_for_status(response)
                yield from read_build(response.iter_lines(chunk_size=None))
            except APIError as error:
                raise _failed("cannot build", None, str(error.explanation or error)) from None
            finally:
                # Whatever ended this: an engine stops a build whose client is gone.
                response.close()

    def tag(self, ref: str, name: str) -> None:
        """Give an image one more name."""
        from docker.utils import parse_repository_tag  # type: ignore[import-untyped]

        repository, tag = parse_repository_tag(name)
        with engine_errors(f"name {ref} {name}", self._connection.where):
            self._api.tag(ref, repository, tag)

    def save(self, ref: str) -> Iterator[bytes]:
        """Chunks of the image as an archive."""
        with engine_errors(f"save the image {ref}", self._connection.where):
            yield from self._api.get_image(ref, chunk_size=_CHUNK)

    def free_bytes(self) -> int | None:
        """Bytes free at the engine's data root, where the engine has its socket and its files on this machine."""
        if self._connection.socket is None:
            return None
        with engine_errors("describe itself", self._connection.where):
            root = self._api.info().get("DockerRootDir")
        try:
            return shutil.disk_usage(root).free if root else None
        except OSError:
            return None  # a socket that is mounted here from elsewhere

    def resources(self) -> Resources:
        """Processors and memory of the engine's machine, as it describes itself."""
        with engine_errors("describe itself", self._connection.where):
            info = self._api.info()
        return Resources(int(info.get("NCPU") or 1), int(info.get("MemTotal") or 0))

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    def _pulling(self, ref: str, platform: str | None) -> Iterator[dict[str, Any]]:
        from docker.errors import APIError

        try:
            yield from self._api.pull(ref, stream=True, decode=True, platform=platform)
        except APIError as error:
            # 400 and more: the engine asked the registry before it answered.
            raise _not_pulled(ref, str(error.explanation or error)) from None


def open_engine() -> DockerEngine:
    """The engine that docker's settings name, once it has said that it is there and can build.

    Raises EngineError, with the cause (none there, not allowed, too old, not answering) and the remedy.
    """
    return DockerEngine(_answering())


def open_client() -> Any:
    """A `docker.DockerClient` for that engine, under the same conditions; for what `Engine` does not offer."""
    return _answering().client


def _answering() -> Connection:
    connection = Connection()
    try:
        connection.version()
    except BaseException:
        connection.close()
        raise
    return connection


def build_params(request: BuildRequest, proxies: dict[str, str]) -> dict[str, Any]:
    """The query of `POST /build`: every value travels as a parameter of its own or inside JSON."""
    params: dict[str, Any] = {
        "version": "2",
        "t": list(request.tags),
        "buildargs": json.dumps({**proxies, **request.build_args}),
        "labels": json.dumps(dict(request.labels)),
        "nocache": "1" if request.no_cache else None,
        "platform": request.platform,
        "networkmode": request.network,
        "target": request.target,
    }
    return {name: value for name, value in params.items() if value is not None}


def image_info(raw: dict[str, Any]) -> ImageInfo:
    """The engine's description of an image, `GET /images/NAME/json`. Raises EngineError where it is none."""
    try:
        config = raw.get("Config") or {}
        return ImageInfo(
            id=raw["Id"],
            labels=dict(config.get("Labels") or {}),
            size=int(raw["Size"]),
            layers=tuple((raw.get("RootFS") or {}).get("Layers") or ()),
            created=raw.get("Created") or "",
            env=dict(entry.partition("=")[::2] for entry in config.get("Env") or ()),
            repo_digests=tuple(raw.get("RepoDigests") or ()),
            platform="/".join(filter(None, (raw.get("Os"), raw.get("Architecture"), raw.get("Variant")))),
            repo_tags=tuple(raw.get("RepoTags") or ()),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EngineError(
            f"the engine's description of an image cannot be read: {error!r}",
            remedy="see whether `docker image inspect` shows it; the engine may be of an unknown kind",
        ) from None


def _readable(context: Iterable[bytes]) -> Iterator[bytes]:
    """The context's chunks; what cannot be read is the context's fault and not the connection's."""
    try:
        for chunk in context:
            # An empty chunk would end a chunked body.
            if chunk:
                yield chunk
    except OSError as error:
        raise BuildFailed(
            f"cannot build: the build context cannot be read: {error}",
            remedy="make its files readable, and leave them alone while an image is built from them",
        ) from None


def _not_pulled(ref: str, error: str) -> BuildFailed:
    return _failed(f"cannot pull {ref}", f"pull {ref}", error)


def _failed(what: str, step: str | None, error: str) -> BuildFailed:
    from flagbench.engines.diagnose import diagnose

    found = diagnose(step, redact(error))
    return BuildFailed(f"{what}: {found.cause}", remedy=found.remedy, step=step)
