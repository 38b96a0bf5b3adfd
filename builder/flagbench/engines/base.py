"""What a container engine is asked, and what it answers: one protocol, plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from flagbench.errors import ExitCode, FlagbenchError


@dataclass(frozen=True)
class BuildRequest:
    """One image to build. Values reach the engine as data (JSON, query parameters), never as a command line."""

    context: Iterable[bytes]
    """Chunks of an uncompressed tar with a `Dockerfile` at its root and no PAX headers; read once, while sent."""
    tags: Sequence[str] = ()
    build_args: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    platform: str | None = None
    """`os/arch[/variant]`; None: the engine's own."""
    no_cache: bool = False
    network: str | None = None
    """Of the RUN steps: `host`, `none`, or None for the engine's default."""
    target: str | None = None
    """The stage to stop at; None: the last."""


@dataclass(frozen=True)
class StepStarted:
    """A step began. One that the engine begins again, which it may, is told again under its id."""

    id: str
    name: str
    """As the engine words it, such as `[stage-0 2/4] RUN ...`."""


@dataclass(frozen=True)
class StepDone:
    """A step ended; `error` is the engine's reason where it failed."""

    id: str
    name: str
    seconds: float
    cached: bool
    error: str | None = None


@dataclass(frozen=True)
class StepLog:
    """A piece of what a step printed, as it came: lines may be cut anywhere, characters are whole."""

    id: str
    text: str


@dataclass(frozen=True)
class StepProgress:
    """How far a part of a step is, such as the download of one layer; bytes, `total` 0 where it is unknown."""

    id: str
    what: str
    current: int
    total: int


@dataclass(frozen=True)
class Built:
    """The last event of a build that succeeded."""

    image_id: str
    """`sha256:<64 hex>` of the image's configuration."""


BuildEvent = StepStarted | StepDone | StepLog | StepProgress | Built


@dataclass(frozen=True)
class ImageInfo:
    """An image that the engine has."""

    id: str
    """`sha256:<64 hex>` of its configuration."""
    labels: Mapping[str, str]
    size: int
    """Bytes, unpacked, all layers."""
    layers: tuple[str, ...]
    """Diff ids, `sha256:<64 hex>` of each layer's uncompressed tar, lowest first."""
    created: str
    """RFC 3339, as the engine gives it."""
    env: Mapping[str, str]
    repo_digests: tuple[str, ...]
    """`repository@sha256:...`; empty for an image that was built or loaded here and not pushed."""
    platform: str = ""
    """`os/arch`."""
    repo_tags: tuple[str, ...] = ()
    """Its names, `repository:tag`."""


@dataclass(frozen=True)
class Resources:
    """What an engine's machine has."""

    cpus: int
    memory: int
    """Bytes."""


class BuildFailed(FlagbenchError):
    """An image could not be built: the step, what it printed last, the cause and what to do."""

    def __init__(self, message: str, *, remedy: str, step: str | None = None, lines: Sequence[str] = ()) -> None:
        super().__init__(message, remedy=remedy, code=ExitCode.BUILD_FAILED)
        self.step = step
        """The failing step as the engine words it; None where the build failed outside of one."""
        self.lines = tuple(lines)
        """The last lines the step printed, at most 20."""


class EngineError(FlagbenchError):
    """The engine is missing, too old, may not be used, went away, or refused a request."""

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message, remedy=remedy, code=ExitCode.ENGINE)


class Engine(Protocol):
    """A container engine. Every method raises EngineError where the engine does not answer as it should."""

    @property
    def name(self) -> str:
        """A word for it, such as `docker`."""

    def health(self) -> str:
        """One line on what it is and where, such as `Docker Engine 20.10.24 at /var/run/docker.sock, BuildKit`."""

    def inspect(self, ref: str) -> ImageInfo | None:
        """The image of that name or id; None where the engine has none. Never pulls."""

    def pull(
        self, ref: str, *, platform: str | None = None, report: Callable[[BuildEvent], None] | None = None
    ) -> ImageInfo:
        """Pull an image with the credentials docker is configured with; `report` is told of the progress.

        Raises:
            BuildFailed: it does not exist, may not be read or its registry cannot be reached.
        """

    def build(self, request: BuildRequest) -> Iterator[BuildEvent]:
        """Build, yielding what happens as it happens; `Built` comes last.

        Closing the iterator, or an exception such as KeyboardInterrupt inside it, cancels the build:
        the running step is stopped and nothing is tagged.

        Raises:
            BuildFailed: a step failed, or the Dockerfile or the context is at fault.
        """

    def tag(self, ref: str, name: str) -> None:
        """Give the image `ref` one more name, `repository:tag`."""

    def save(self, ref: str) -> Iterator[bytes]:
        """Chunks of the image as an archive, as `docker save` writes it."""

    def free_bytes(self) -> int | None:
        """Bytes free where the engine keeps images; None where that cannot be seen from here (another machine)."""

    def resources(self) -> Resources:
        """The processors and the memory that its builds share."""

    def close(self) -> None:
        """Let go of its connections."""
