"""The Docker Engine: builds, pulls and pushes run its command-line client, everything else asks its API (docker-py).

`flagbench build`, `push`, `pull` and the launcher of containers use it. docker_api.py connects to the API,
docker_process.py runs the client, and docker_errors.py explains the errors that it prints.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from flagbench.image_reference import is_ours, parse_reference, try_parse_reference
from flagbench.images.docker_api import describe_address, engine_errors, open_client
from flagbench.images.docker_errors import (
    BUILD,
    PULL,
    PUSH,
    BuildFailed,
    EngineError,
    ErrorPattern,
    find_reason,
    match_pattern,
)
from flagbench.images.docker_process import find_docker, run_docker
from flagbench_core.redaction import redact

_CHUNK = 2**20
"""Bytes of an image that are read from the engine at once."""
_SHOWN_LINES = 20
"""Most lines of a failed command that its error repeats, if they were not shown while it ran."""
_PUSHED = re.compile(r"digest: (sha256:[0-9a-f]{64})")
"""The digest of the manifest at the end of what `docker push` prints."""
_UNREACHABLE = re.compile(
    r"Cannot connect to the Docker daemon|error during connect|trying to connect to the (?:Docker|docker API)"
    r"|code = Unavailable|Maximum supported API version|client version \S+ is too"
)
"""The client's errors if it cannot use the engine: none there, going away, or of another version."""
_LOAD_REMEDY = (
    "free some space if its disk is full (`docker system df`), and look at its log (`journalctl -u docker`)"
)


@dataclass(frozen=True)
class BuildRequest:
    """One image to build."""

    context: Iterable[bytes]
    """Chunks of an uncompressed tar with a `Dockerfile` at its root and no PAX headers; read once, while sent."""
    tags: Sequence[str]
    """The names that the image gets, at least one; the first is its main name, which errors mention."""
    build_args: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    platform: str | None = None
    """`os/arch[/variant]`; None: the engine's own."""
    no_cache: bool = False
    """Whether every step runs again, even if the build cache has its result."""
    secrets: Sequence[str] = ()
    """Texts, such as passwords, that are replaced in everything that is shown or reported."""


@dataclass(frozen=True)
class ImageInfo:
    """An image that the engine has."""

    id: str
    """`sha256:<64 hex>`. With the classic image store it is the digest of the image's configuration. With the
    containerd image store it is the digest of its manifest."""
    labels: Mapping[str, str]
    layers: tuple[str, ...]
    """The diff id of each layer, `sha256:<64 hex>` of its uncompressed tar, lowest layer first."""
    repo_digests: tuple[str, ...]
    """`repository@sha256:...`; with the classic image store empty for an image that was built or loaded here."""
    platform: str = ""
    """`os/arch[/variant]`; empty if the engine does not say."""


@dataclass(frozen=True)
class Resources:
    """The processors and the memory of an engine's machine, which its builds share."""

    cpus: int
    """The number of logical processors."""
    memory: int
    """The size of the memory, bytes."""


class DockerEngine:
    """The Docker Engine that docker's own settings name.

    Every method raises EngineError if the engine does not answer, or refuses.
    """

    def __init__(self, client: Any) -> None:
        """Use a connected `docker.DockerClient`; see `open_engine`."""
        self._client = client

    def health(self) -> str:
        """Describe in one line which engine it is, where it is, and the docker command that builds with it."""
        with engine_errors("answer"):
            version = self._client.version()
        number = version.get("Version", "")
        platform = f"{version.get('Os', '')}/{version.get('Arch', '')}"
        line = f"Docker Engine {number} ({platform}, API {version['ApiVersion']}) at {describe_address()}"
        try:
            return f"{line}; images are built with {find_docker(builds=True)}"
        except EngineError as error:
            return f"{line}; cannot build: {error.message}"

    def inspect(self, ref: str) -> ImageInfo | None:
        """Look up an image by name or id; None if the engine has none. Never pulls."""
        from docker.errors import ImageNotFound  # type: ignore[import-untyped]

        with engine_errors(f"describe the image {ref}"):
            try:
                raw = self._client.api.inspect_image(ref)
            except ImageNotFound:
                return None
        # An engine has null in place of an empty object or list.
        config = raw.get("Config") or {}
        file_system = raw.get("RootFS") or {}
        platform = (raw.get("Os"), raw.get("Architecture"), raw.get("Variant"))
        return ImageInfo(
            id=raw["Id"],
            labels=dict(config.get("Labels") or {}),
            layers=tuple(file_system.get("Layers") or ()),
            repo_digests=tuple(raw.get("RepoDigests") or ()),
            platform="/".join(part for part in platform if part),
        )

    def pull(self, ref: str, *, platform: str | None = None, show: TextIO | None = None) -> ImageInfo:
        """Pull an image with the credentials of `docker login`; the client's progress goes to `show`.

        Raises BuildFailed if it does not exist, may not be read, or its registry cannot be reached.
        """
        if ref.startswith("sha256:") or is_ours(ref):
            raise BuildFailed(
                f"the engine has no image {ref}, and neither an id nor an image of flagbench's own can be pulled",
                remedy="build it with `flagbench build`, or load it with `docker load`",
            )
        options = [f"--platform={platform}"] if platform else []
        self._run(ref, ["pull", *options, ref], PULL, BuildFailed, show=show)
        return self._require_image(ref)

    def push(self, ref: str, *, show: TextIO | None = None) -> str:
        """Push an image with the credentials of `docker login`; returns the digest of its manifest.

        The client's progress goes to `show`. Raises EngineError with the cause if the registry does not accept it.
        """
        lines = self._run(ref, ["push", ref], PUSH, EngineError, show=show)
        digests = _PUSHED.findall("\n".join(lines))
        if not digests:
            raise EngineError(
                f"docker succeeded, but did not print the digest of {ref}",
                remedy=f"push it once more, and look at what `docker push {ref}` prints",
            )
        return str(digests[-1])

    def build(self, request: BuildRequest, *, show: TextIO | None = None) -> ImageInfo:
        """Build an image with BuildKit; the client's progress goes to `show`, drawn if that is a terminal.

        An exception such as KeyboardInterrupt cancels the build: the running step is stopped and nothing is tagged.

        Raises BuildFailed if a step fails, or if the Dockerfile or the context is invalid.
        """
        proxies = {name: value for name, value in _proxies().items() if name not in request.build_args}
        self._run(
            request.tags[0],
            ["build", *_build_options(request, proxies), "-"],
            BUILD,
            BuildFailed,
            environment=_build_environment(proxies),
            content=request.context,
            show=show,
            secrets=request.secrets,
        )
        # By its tag: with the containerd image store the client names another digest than the engine's id.
        return self._require_image(request.tags[0])

    def tag(self, ref: str, name: str) -> None:
        """Give the image `ref` one more name, `repository:tag`."""
        reference = parse_reference(name)
        with engine_errors(f"name {ref} {name}"):
            self._client.api.tag(ref, reference.name, reference.tag)

    def save(self, ref: str) -> Iterator[bytes]:
        """Read an image as the chunks of an archive, as `docker save` writes it."""
        with engine_errors(f"save the image {ref}"):
            yield from self._client.api.get_image(ref, _CHUNK)

    def load(self, archive: Iterable[bytes]) -> None:
        """Load the images of an archive, as `docker load` does. Raises EngineError with the engine's reason."""
        with engine_errors("load an image"):
            for line in self._client.api.load_image(archive, quiet=True):
                # The HTTP status can be 200 although loading fails later. The reason is `error` or `message` then,
                # depending on the engine's version.
                problem = line.get("error") or line.get("message")
                if problem:
                    reason = redact(" ".join(str(problem).split()))
                    raise EngineError(f"the engine could not load an image: {reason}", remedy=_LOAD_REMEDY)

    def has_classic_image_store(self) -> bool:
        """Ask whether the engine uses the classic image store, and not the containerd image store.

        It decides what an image's id is (`ImageInfo.id`), and whether an image can be loaded without the layers that
        the engine has.
        """
        storage = str(self._info().get("DriverStatus") or "")
        return "io.containerd.snapshotter" not in storage

    def images(self) -> Iterator[ImageInfo]:
        """List every image that has a name, or had one; intermediate images of builds are left out."""
        with engine_errors("list its images"):
            ids = self._client.api.images(quiet=True)
        for identity in dict.fromkeys(ids):
            image = self.inspect(identity)
            if image is not None:  # Another client may have removed it meanwhile.
                yield image

    def resources(self) -> Resources:
        """Ask for the processors and the memory that its builds share."""
        info = self._info()
        return Resources(int(info.get("NCPU") or 1), int(info.get("MemTotal") or 0))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _info(self) -> dict[str, Any]:
        """Ask the engine to describe itself, as `docker info` does."""
        with engine_errors("describe itself"):
            return dict(self._client.info())

    def _require_image(self, ref: str) -> ImageInfo:
        """Look up an image that was just built or pulled.

        Raises EngineError if the engine does not have it: a builder in a container of its own keeps its images.
        """
        image = self.inspect(ref)
        if image is None:
            raise EngineError(
                f"docker succeeded, but the engine has no image {ref}",
                remedy="build with the engine itself (`docker buildx ls`, `docker buildx use default`)",
            )
        return image

    def _run(
        self,
        image: str,
        words: Sequence[str],
        patterns: Iterable[ErrorPattern],
        error_type: type[BuildFailed | EngineError],
        *,
        show: TextIO | None,
        environment: Mapping[str, str] = os.environ,
        content: Iterable[bytes] | None = None,
        secrets: Sequence[str] = (),
    ) -> list[str]:
        """Run a docker command, and return the last lines that it printed.

        Args:
            image: the image that an error names.
            words: the words of the command line after `docker`.
            patterns: the causes that an error of the command may have.
            error_type: the type of the error.
            show: gets what the command prints; None: an error repeats the last lines.
            environment: the environment of the command.
            content: chunks of its standard input.
            secrets: texts that are replaced in its output.

        Raises `error_type` if the command fails, and EngineError if it cannot use the engine.
        """
        docker = find_docker(builds=words[0] == "build")
        result = run_docker([docker, *words], environment, content=content, show=show, secrets=secrets)
        if result.code == 0:
            return result.lines
        reason = find_reason(result.lines)
        if _UNREACHABLE.search(reason):
            raise EngineError(
                f"{docker} cannot use the engine at {describe_address()}: {reason}",
                remedy="look at its log (`journalctl -u docker`), and at both versions with `docker version`",
            )
        problem = match_pattern(patterns, "\n".join(result.lines), reason=reason, host=_registry_host(image))
        message = f"cannot {words[0]} {image}: {problem.cause}"
        if show is None:
            message = "\n  | ".join([message, *result.lines[-_SHOWN_LINES:]])
        raise error_type(message, remedy=problem.remedy)


def open_engine() -> DockerEngine:
    """Connect to the engine that docker's settings name.

    Raises EngineError if no engine answers, or if it may not be used or is too old.
    """
    return DockerEngine(open_client())


def _registry_host(image: str) -> str:
    """Return the host of the registry that an image's reference names, as `docker login` takes it."""
    reference = try_parse_reference(image)
    if reference is None or not reference.host:
        return "docker.io"
    return reference.host


def _build_options(request: BuildRequest, proxies: Iterable[str]) -> list[str]:
    """Build the options of `docker build`. Each is one argument, and no shell reads it.

    Args:
        proxies: names of the environment variables with proxies.
    """
    options = [f"--tag={tag}" for tag in request.tags]
    options += [f"--label={name}={value}" for name, value in request.labels.items()]
    options += [f"--build-arg={name}={value}" for name, value in request.build_args.items()]
    # Without a value here the client takes it from its environment. A proxy's URL may have a password in it, and
    # every user of the machine can read command lines.
    options += [f"--build-arg={name}" for name in proxies]
    if request.platform:
        options.append(f"--platform={request.platform}")
    if request.no_cache:
        options.append("--no-cache")
    return options


def _build_environment(proxies: Mapping[str, str]) -> dict[str, str]:
    """Build the environment of `docker build`, which selects BuildKit."""
    environment = {**os.environ, **proxies, "DOCKER_BUILDKIT": "1"}
    # Build in the engine itself: a builder in a container of its own does not have the images of lower tiers.
    environment.pop("BUILDX_BUILDER", None)
    # With an attestation, the same layers would become another image.
    environment["BUILDX_NO_DEFAULT_ATTESTATIONS"] = "1"
    return environment


def _proxies() -> dict[str, str]:
    """Read the proxies from the environment; each is returned in upper and in lower case, as programs read either.

    These build arguments are predefined: every RUN step has them in its environment without declaring them, and
    neither the image's history nor its environment nor the cache key of a step contains them. The client itself adds
    those of docker's config.json.
    """
    variables = {}
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY"):
        value = os.environ.get(name.lower()) or os.environ.get(name)
        if value:
            variables[name] = value
            variables[name.lower()] = value
    return variables
