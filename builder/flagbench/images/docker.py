"""Docker Engine: it builds, pulls and pushes through its own client, and is asked for the rest through docker-py."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from flagbench.image_reference import is_ours, parse_reference
from flagbench.images.docker_api import address, engine_errors, open_client
from flagbench.images.docker_errors import (
    BUILD,
    PULL,
    PUSH,
    BuildFailed,
    EngineError,
    ErrorPattern,
    last_words,
    match_pattern,
)
from flagbench.images.docker_process import find_docker, run_docker
from flagbench_core.redaction import redact

_CHUNK = 2**20
_SHOWN_LINES = 20
"""Of a command whose output was not shown, where it fails."""
_PUSHED = re.compile(r"digest: (sha256:[0-9a-f]{64})")
_UNREACHABLE = re.compile(
    r"Cannot connect to the Docker daemon|error during connect|trying to connect to the (?:Docker|docker API)"
    r"|code = Unavailable|Maximum supported API version|client version \S+ is too"
)
_LOAD = "free some space if its disk is full (`docker system df`), and look at its log (`journalctl -u docker`)"


@dataclass(frozen=True)
class BuildRequest:
    """One image to build."""

    context: Iterable[bytes]
    """Chunks of an uncompressed tar with a `Dockerfile` at its root and no PAX headers; read once, while sent."""
    tags: Sequence[str] = ()
    build_args: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    platform: str | None = None
    """`os/arch[/variant]`; None: the engine's own."""
    no_cache: bool = False
    secrets: Sequence[str] = ()
    """Texts that are replaced in everything that is shown or reported."""


@dataclass(frozen=True)
class ImageInfo:
    """An image that the engine has."""

    id: str
    """`sha256:<64 hex>`: the digest of its configuration, or of its manifest with the containerd image store."""
    labels: Mapping[str, str]
    layers: tuple[str, ...]
    """Diff ids, `sha256:<64 hex>` of each layer's uncompressed tar, lowest first."""
    repo_digests: tuple[str, ...]
    """`repository@sha256:...`; with the classic image store empty for an image that was built or loaded here."""
    platform: str = ""
    """`os/arch`."""


@dataclass(frozen=True)
class Resources:
    """What an engine's machine has."""

    cpus: int
    memory: int
    """Bytes."""


class DockerEngine:
    """The Docker Engine that docker's own settings name.

    Every method raises EngineError where the engine does not answer as it should.
    """

    def __init__(self, client: Any) -> None:
        """`client`: a connected `docker.DockerClient`."""
        self._client = client

    def health(self) -> str:
        """One line on which engine it is, where, and what builds images with it."""
        with engine_errors("answer"):
            version = self._client.version()
        platform = f"{version.get('Os', '')}/{version.get('Arch', '')}"
        line = f"Docker Engine {version.get('Version', '')} ({platform}, API {version['ApiVersion']}) at {address()}"
        try:
            return f"{line}; images are built with {find_docker(builds=True)}"
        except EngineError as error:
            return f"{line}; cannot build: {error.message}"

    def inspect(self, ref: str) -> ImageInfo | None:
        """The image of that name or id; None where the engine has none. Never pulls."""
        from docker.errors import ImageNotFound  # type: ignore[import-untyped]

        with engine_errors(f"describe the image {ref}"):
            try:
                raw = self._client.api.inspect_image(ref)
            except ImageNotFound:
                return None
        return ImageInfo(
            id=raw["Id"],
            labels=dict((raw.get("Config") or {}).get("Labels") or {}),
            layers=tuple((raw.get("RootFS") or {}).get("Layers") or ()),
            repo_digests=tuple(raw.get("RepoDigests") or ()),
            platform="/".join(filter(None, (raw.get("Os"), raw.get("Architecture"), raw.get("Variant")))),
        )

    def pull(self, ref: str, *, platform: str | None = None, show: TextIO | None = None) -> ImageInfo:
        """Pull an image with the credentials of `docker login`; the client's progress goes to `show`.

        Raises BuildFailed where it does not exist, may not be read or its registry cannot be reached.
        """
        if ref.startswith("sha256:") or is_ours(ref):
            raise BuildFailed(
                f"the engine has no image {ref}, and neither an id nor an image of flagbench's own can be pulled",
                remedy="build it with `flagbench build`, or load it with `docker load`",
            )
        options = [f"--platform={platform}"] if platform else []
        self._run(ref, ["pull", *options, ref], PULL, BuildFailed, show=show)
        return self._existing(ref)

    def push(self, ref: str, *, show: TextIO | None = None) -> str:
        """Push an image with the credentials of `docker login`; returns the digest of its manifest.

        The client's progress goes to `show`. Raises EngineError with the cause where the registry does not take it.
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
        """Build; the client's own progress goes to `show`, drawn where that is a terminal.

        An exception such as KeyboardInterrupt cancels the build: the running step is stopped and nothing is tagged.

        Raises BuildFailed where a step failed, or the Dockerfile or the context is at fault.
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
        return self._existing(request.tags[0])

    def tag(self, ref: str, name: str) -> None:
        """Give the image `ref` one more name, `repository:tag`."""
        reference = parse_reference(name)
        with engine_errors(f"name {ref} {name}"):
            self._client.api.tag(ref, reference.name, reference.tag)

    def save(self, ref: str) -> Iterator[bytes]:
        """Chunks of an image as an archive, as `docker save` writes it."""
        with engine_errors(f"save the image {ref}"):
            yield from self._client.api.get_image(ref, _CHUNK)

    def load(self, archive: Iterable[bytes]) -> None:
        """Load the images of an archive, as `docker load` does. Raises EngineError with the engine's reason."""
        with engine_errors("load an image"):
            for line in self._client.api.load_image(archive, quiet=True):
                # An answer that is an error has a message; so may one that begins well.
                if problem := line.get("error") or line.get("message"):
                    raise EngineError(
                        f"the engine could not load an image: {redact(' '.join(str(problem).split()))}", remedy=_LOAD
                    )

    def names_configurations(self) -> bool:
        """Whether the ids of its images are the digests of their configurations.

        With the containerd image store they are the digests of manifests.
        """
        return "io.containerd.snapshotter" not in str(self._info().get("DriverStatus") or "")

    def images(self) -> Iterator[ImageInfo]:
        """Every image that has a name, or had one."""
        with engine_errors("list its images"):
            ids = self._client.api.images(quiet=True)
        for identity in dict.fromkeys(ids):
            if (image := self.inspect(identity)) is not None:
                yield image

    def resources(self) -> Resources:
        """The processors and the memory that its builds share."""
        info = self._info()
        return Resources(int(info.get("NCPU") or 1), int(info.get("MemTotal") or 0))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _info(self) -> dict[str, Any]:
        with engine_errors("describe itself"):
            return dict(self._client.info())

    def _existing(self, ref: str) -> ImageInfo:
        """An image that was just built or pulled."""
        if (image := self.inspect(ref)) is None:
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
        kind: type[BuildFailed | EngineError],
        **options: Any,
    ) -> list[str]:
        """Run a docker command with the options of `run_docker`; the last lines that it printed.

        Raises `kind` where it fails, as `patterns` explain it, with its last lines where they were not shown.
        """
        docker = find_docker(builds=words[0] == "build")
        code, lines = run_docker([docker, *words], **options)
        if code == 0:
            return lines
        reason = last_words(lines)
        if _UNREACHABLE.search(reason):
            raise EngineError(
                f"{docker} cannot use the engine at {address()}: {reason}",
                remedy="look at its log (`journalctl -u docker`), and at both versions with `docker version`",
            )
        problem = match_pattern(patterns, "\n".join(lines), reason=reason, host=image.partition("/")[0])
        assert problem is not None, "the last pattern is in every text"
        message = f"cannot {words[0]} {image}: {problem.cause}"
        if not options["show"]:
            message = "\n  | ".join([message, *lines[-_SHOWN_LINES:]])
        raise kind(message, remedy=problem.remedy)


def open_engine() -> DockerEngine:
    """The engine that docker's settings name, connected.

    Raises EngineError, with the cause (none there, not allowed, too old, not answering) and the remedy.
    """
    return DockerEngine(open_client())


def _build_options(request: BuildRequest, proxies: Iterable[str]) -> list[str]:
    """The options of `docker build`: each value is one argument, and no shell reads it."""
    options = [f"--tag={tag}" for tag in request.tags]
    options += [f"--label={name}={value}" for name, value in request.labels.items()]
    options += [f"--build-arg={name}={value}" for name, value in request.build_args.items()]
    # Without a value it is taken from the client's environment: a proxy's may have a password in it.
    options += [f"--build-arg={name}" for name in proxies]
    if request.platform:
        options.append(f"--platform={request.platform}")
    if request.no_cache:
        options.append("--no-cache")
    return options


def _build_environment(proxies: Mapping[str, str]) -> dict[str, str]:
    """The environment of `docker build`: BuildKit, in the engine itself, which has the images of lower tiers."""
    kept = {name: value for name, value in os.environ.items() if name != "BUILDX_BUILDER"}
    # An attestation would make another image of the same layers.
    return {**kept, **proxies, "DOCKER_BUILDKIT": "1", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}


def _proxies() -> dict[str, str]:
    """The proxies that are set, in upper and in lower case: programs differ in which they read.

    An engine predefines these build arguments: every RUN step has them in its environment without declaring them,
    and neither the image's history nor its environment nor the cache key of a step contains them. The client adds
    those of docker's config.json itself.
    """
    variables = {}
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY"):
        if value := os.environ.get(name.lower()) or os.environ.get(name):
            variables.update({name: value, name.lower(): value})
    return variables
