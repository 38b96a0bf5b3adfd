"""Docker Engine: it builds, pulls and pushes through its own client, and is asked for the rest through docker-py."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

from flagbench.engines.base import (
    BuildFailed,
    BuildRequest,
    BuiltImage,
    EngineError,
    ImageInfo,
    Resources,
)
from flagbench.engines.build_output import BuildOutput
from flagbench.engines.client import DockerCommand, find_client, run_client
from flagbench.engines.connect import address, engine_errors, open_client
from flagbench.engines.diagnose import diagnose_push
from flagbench.images import is_ours, parse_reference
from flagbench.redaction import redact

_CHUNK = 2**20
_PUSHED = re.compile(r"digest: (sha256:[0-9a-f]{64})")
_LOCAL = "http+docker://localhost"
"""The base URL that docker-py has for an engine at a Unix socket."""
_UNREACHABLE = re.compile(
    r"Cannot connect to the Docker daemon|error during connect|trying to connect to the (?:Docker|docker API)"
    r"|code = Unavailable|Maximum supported API version|client version \S+ is too"
)
_LOAD = "free some space if its disk is full (`docker system df`), and look at its log (`journalctl -u docker`)"
_CONFIG = ("Cmd", "Entrypoint", "User", "WorkingDir")


class Engine:
    """The Docker Engine that docker's own settings name.

    Every method raises EngineError where the engine does not answer as it should.
    """

    def __init__(self, client: Any) -> None:
        """`client`: a connected `docker.DockerClient`."""
        self._client = client

    @cached_property
    def _command(self) -> DockerCommand:
        return find_client()

    def health(self) -> str:
        """One line on which engine it is, where, and what builds images with it."""
        with engine_errors("answer"):
            version = self._client.version()
        platform = f"{version.get('Os', '')}/{version.get('Arch', '')}"
        line = f"{_kind(version)} ({platform}, API {version['ApiVersion']}) at {address()}"
        try:
            return f"{line}; images are built with {self._command.path} {self._command.version}"
        except EngineError as error:
            return f"{line}; cannot build: {error.message}"

    def kind(self) -> str:
        """Which engine it is, with its version."""
        with engine_errors("answer"):
            return _kind(self._client.version())

    def inspect(self, ref: str) -> ImageInfo | None:
        """The image of that name or id; None where the engine has none. Never pulls."""
        from docker.errors import ImageNotFound  # type: ignore[import-untyped]

        with engine_errors(f"describe the image {ref}"):
            try:
                return image_info(self._client.api.inspect_image(ref))
            except ImageNotFound:
                return None

    def pull(self, ref: str, *, platform: str | None = None, show: TextIO | None = None) -> ImageInfo:
        """Pull an image with the credentials of `docker login`; the client's progress goes to `show`.

        Raises:
            BuildFailed: it does not exist, may not be read or its registry cannot be reached.
        """
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
        options = [f"--platform={platform}"] if platform else []
        output = BuildOutput()
        command = [self._command.path, "pull", *options, ref]
        code = run_client(command, os.environ, read=output.read, show=show)
        image = self.inspect(ref) if code == 0 else None
        if image is None:
            raise self._failure(output, f"cannot pull {ref}", f"pull {ref}")
        return image

    def push(self, ref: str, *, show: TextIO | None = None) -> str:
        """Push an image with the credentials of `docker login`; returns the digest of its manifest.

        The client's progress goes to `show`. Raises EngineError with the cause where the registry does not take it.
        """
        output = BuildOutput()
        code = run_client([self._command.path, "push", ref], os.environ, read=output.read, show=show)
        digest = _PUSHED.search(output.errors)
        if code != 0 or digest is None:
            if unreachable := self._unreachable(output):
                raise unreachable
            cause, remedy = diagnose_push(ref, output.errors.rpartition("\n")[2])
            raise EngineError(f"cannot push {ref}: {cause}", remedy=remedy)
        return digest[1]

    def build(self, request: BuildRequest, *, show: TextIO | None = None) -> BuiltImage:
        """Build; the client's own progress goes to `show`, drawn where that is a terminal.

        An exception such as KeyboardInterrupt cancels the build: the running step is stopped and nothing is tagged.

        Raises:
            BuildFailed: a step failed, or the Dockerfile or the context is at fault.
        """
        output = BuildOutput()
        proxies = {name: value for name, value in _proxies().items() if name not in request.build_args}
        # A line that is drawn is cut to the terminal's width, and a secret in it too: it would not be recognised.
        drawn = show is not None and show.isatty() and not request.secrets
        with tempfile.TemporaryDirectory(prefix="flagbench-") as folder:
            id_file = Path(folder, "id")
            options = [f"--progress={'tty' if drawn else 'plain'}", f"--iidfile={id_file}"]
            code = run_client(
                [self._command.path, "build", *options, *_build_options(request, proxies), "-"],
                _build_environment(proxies),
                read=output.read,
                secrets=request.secrets,
                content=request.context,
                show=show,
            )
            if code != 0 or not id_file.exists():
                raise self._failure(output, "cannot build", None)
            image_id = id_file.read_text(encoding="ascii").strip()
        if request.tags:
            # With the containerd image store the client names another digest than the engine's id.
            tagged = self.inspect(request.tags[0])
            image_id = tagged.id if tagged else image_id
        return BuiltImage(image_id, tuple(output.steps))

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

    def free_bytes(self) -> int | None:
        """Bytes free where the engine keeps images; None where that cannot be seen from here (another machine)."""
        if self._client.api.base_url != _LOCAL:
            return None
        root = self._info().get("DockerRootDir")
        try:
            return shutil.disk_usage(root).free if root else None
        except OSError:
            return None  # a socket that is mounted here from elsewhere

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

    def _failure(self, output: BuildOutput, what: str, step: str | None) -> BuildFailed | EngineError:
        return self._unreachable(output) or output.failure(what, step)

    def _unreachable(self, output: BuildOutput) -> EngineError | None:
        """The error of a client that could not use the engine; None if that was not the cause."""
        if not _UNREACHABLE.search(output.errors):
            return None
        return EngineError(
            f"{self._command.path} cannot use the engine at {address()}: {output.errors.splitlines()[-1]}",
            remedy="look at its log (`journalctl -u docker`), and at both versions with `docker version`",
        )


def open_engine() -> Engine:
    """The engine that docker's settings name, connected.

    Raises EngineError, with the cause (none there, not allowed, too old, not answering) and the remedy.
    """
    return Engine(open_client())


def _kind(version: Mapping[str, Any]) -> str:
    return " ".join(("Docker Engine", str(version.get("Version", "")))).strip()


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


def image_info(raw: dict[str, Any]) -> ImageInfo:
    """The engine's description of an image. Raises EngineError where it is not one."""
    try:
        config = raw.get("Config") or {}
        return ImageInfo(
            id=raw["Id"],
            labels=dict(config.get("Labels") or {}),
            size=int(raw["Size"]),
            layers=tuple((raw.get("RootFS") or {}).get("Layers") or ()),
            env=dict(entry.partition("=")[::2] for entry in config.get("Env") or ()),
            repo_digests=tuple(raw.get("RepoDigests") or ()),
            platform="/".join(filter(None, (raw.get("Os"), raw.get("Architecture"), raw.get("Variant")))),
            repo_tags=tuple(raw.get("RepoTags") or ()),
            config={key: config.get(key) for key in _CONFIG},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EngineError(
            f"the engine's description of an image cannot be read: {error!r}",
            remedy="see whether `docker image inspect` shows it; the engine may be of an unknown kind",
        ) from None
