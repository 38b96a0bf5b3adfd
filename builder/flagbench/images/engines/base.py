"""What a container engine is asked, and what it answers, as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flagbench.errors import FlagbenchError
from flagbench_core.exit_codes import ExitCode


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


class BuildFailed(FlagbenchError):
    """An image could not be built or pulled."""

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message, remedy=remedy, code=ExitCode.BUILD_FAILED)


class EngineError(FlagbenchError):
    """The engine or its client is missing or too old, may not be used, went away, or refused a request."""

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message, remedy=remedy, code=ExitCode.ENGINE)
