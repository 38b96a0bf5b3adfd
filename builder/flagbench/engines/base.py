"""What a container engine is asked, and what it answers, as plain data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from flagbench.errors import ExitCode, FlagbenchError


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
class Step:
    """One step of a build, as the engine names it, such as `[stage-0 2/4] RUN ...`."""

    name: str
    seconds: float
    cached: bool


@dataclass(frozen=True)
class BuiltImage:
    """The result of a build that succeeded."""

    image_id: str
    steps: tuple[Step, ...] = ()
    """The steps that completed; empty where the progress was drawn on a terminal."""


@dataclass(frozen=True)
class ImageInfo:
    """An image that the engine has."""

    id: str
    """`sha256:<64 hex>`: the digest of its configuration, or of its manifest with the containerd image store."""
    labels: Mapping[str, str]
    size: int
    """Bytes, unpacked, all layers."""
    layers: tuple[str, ...]
    """Diff ids, `sha256:<64 hex>` of each layer's uncompressed tar, lowest first."""
    env: Mapping[str, str]
    repo_digests: tuple[str, ...]
    """`repository@sha256:...`; with the classic image store empty for an image that was built or loaded here."""
    platform: str = ""
    """`os/arch`."""
    repo_tags: tuple[str, ...] = ()
    """Its names, `repository:tag`."""
    config: Mapping[str, object] = field(default_factory=dict)
    """What a container of it starts with: command, entry point, user, working directory."""

    @cached_property
    def content_digest(self) -> str:
        """`sha256:<64 hex>` over the diff ids and the configuration: the same with every image store.

        An engine's id is not: the containerd image store gives an image the digest of its manifest, which depends
        on how its layers were compressed.
        """
        content = {
            "layers": self.layers,
            "platform": self.platform,
            "env": sorted(self.env.items()),
            "labels": sorted(self.labels.items()),
            "config": {key: value for key, value in self.config.items() if value},
        }
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


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
        """The failing step as the engine names it; None where the build failed outside of one."""
        self.lines = tuple(lines)
        """The last lines the step printed, at most 20."""


class EngineError(FlagbenchError):
    """The engine or its client is missing or too old, may not be used, went away, or refused a request."""

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message, remedy=remedy, code=ExitCode.ENGINE)
