"""Chooses how a request is run: in a container or in this Python, and with which launcher.

`flagbench run`, `reproduce` and `accept` make a `Target` here and pass it to `runs.keep` or `runs.series`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Annotated, Any, Literal

import typer

from flagbench.console.progress import Progress
from flagbench.errors import FlagbenchError
from flagbench.manifests.lookup import UnknownNameError, require_base, resolve_image
from flagbench.manifests.model import Catalog
from flagbench.manifests.stack import Stack
from flagbench.options import words
from flagbench.runs.launchers import Launcher
from flagbench.runs.launchers.docker import DockerLauncher
from flagbench.runs.launchers.docker_command import DockerOptions
from flagbench.runs.launchers.native import NativeLauncher
from flagbench.runs.request import RunRequest

Via = Literal["docker", "native"]
ViaOption = Annotated[
    Via | None,
    typer.Option(help="In a container, or in this Python. Default: docker; native for cpu, or without it."),
]


@dataclass(frozen=True)
class Target:
    """A request with the launcher that runs it, once or several times."""

    request: RunRequest
    via: Via
    container: DockerOptions
    launcher: Launcher

    @property
    def image(self) -> str | None:
        """The image that was named, else the usual one of the case and stack; None for a native run."""
        if self.via == "native":
            return None
        return self.container.image or self.request.image

    @property
    def name(self) -> str:
        """`case:stack`, or the image if one was named."""
        if self.via == "docker" and self.container.image:
            return self.container.image
        return self.request.name

    def with_options(self, **options: Any) -> Target:
        """The same target with these options of its request changed."""
        changed_options = replace(self.request.options, **options)
        changed_request = replace(self.request, options=changed_options)
        return replace(self, request=changed_request)


def target_of(request: RunRequest, via: Via, container: DockerOptions) -> Target:
    """The target that runs `request` via docker or natively."""
    return Target(request, via, container, _make_launcher(via, container))


def choose_via(via: Via | None, stack: Stack, only_docker: Sequence[str]) -> Via:
    """Choose how to run: as `via` says if it is given.

    By default a run is native on the cpu stack, for a stack without a base image, and if this Python has torch and
    there is no `docker`. All other runs are in a container. Raises FlagbenchError (USAGE) for a contradiction.

    `only_docker`: the options that were given and only a container has.
    """
    if via == "native" and only_docker:
        raise FlagbenchError(
            f"{only_docker[0]} needs a container, which --via native does not use", remedy="use --via docker"
        )
    if via == "docker" or only_docker:
        require_base(stack)
    if via is not None:
        return via
    if only_docker:
        return "docker"
    if stack.device_kind == "cpu" or stack.base is None:
        return "native"
    if shutil.which("docker") is None and find_spec("torch") is not None:
        return "native"
    return "docker"


def targets_of(
    request: RunRequest,
    via: Via | None,
    container: DockerOptions,
    interleave: str | None,
    catalog: Catalog,
) -> list[Target]:
    """The targets to run: the one of `request`, and with --interleave a second one.

    Raises FlagbenchError (USAGE) for options that contradict each other.
    """
    only_docker = [word.partition("=")[0] for word in words(container)]
    if interleave is None:
        return [target_of(request, choose_via(via, request.stack, only_docker), container)]
    alternate, image = resolve_interleaved(interleave, request, catalog)
    if image is not None:
        only_docker.append("--interleave with an image")
    return [
        target_of(request, choose_via(via, request.stack, only_docker), container),
        target_of(alternate, choose_via(via, alternate.stack, only_docker), replace(container, image=image)),
    ]


def resolve_interleaved(name: str, request: RunRequest, catalog: Catalog) -> tuple[RunRequest, str | None]:
    """The request of the second side of --interleave, and its image if `name` is that of an image.

    `name` is `CASE:STACK`, or an image of the same case and stack: a name with a slash, an id or a digest. Raises
    FlagbenchError (USAGE) for anything else, and for another case.
    """
    try:
        case, stack = resolve_image(name, catalog)
    except UnknownNameError:
        if "/" in name or "@" in name or name.startswith("sha256:"):
            return request, name
        raise
    if case.name != request.case.name:
        raise FlagbenchError(
            f"--interleave {name}: runs of {case.name} cannot be compared with runs of {request.case.name}",
            remedy=f"name an image of {request.case.name}",
        )
    return replace(request, stack=stack), None


def _make_launcher(via: Via, container: DockerOptions) -> Launcher:
    """The launcher for `via`."""
    if via == "native":
        return NativeLauncher()
    return DockerLauncher(container, environment=os.environ, display=_progress_environment(), progress=Progress())


def _progress_environment() -> dict[str, str]:
    """Variables that let a container draw its progress for this terminal; none if stderr is not a terminal."""
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") in ("dumb", ""):
        return {}
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        return {}
    return {"FLAGBENCH_PROGRESS": "live", "COLUMNS": str(columns)}
