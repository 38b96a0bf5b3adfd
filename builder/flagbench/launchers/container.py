"""The container a run needs, as plain data: decided here, worded for the engine and for a shell elsewhere."""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace

from flagbench.errors import FlagbenchError
from flagbench.launchers.base import RunRequest
from flagbench.launchers.environment import passed_on
from flagbench.launchers.folders import Folder, mount_folders
from flagbench.launchers.host import Host
from flagbench.launchers.needs import Grants, grants, memory_limit

RUN_LABEL = "dev.flagbench.run"
"""On every container of a run, with the run's id: `docker ps --filter label=dev.flagbench.run` finds them."""
DIGEST_VARIABLE = "FLAGBENCH_IMAGE_DIGEST"
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_RUN_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}")


@dataclass(frozen=True)
class DockerOptions:
    """What a person may choose about the container of a run."""

    image: str | None = None
    """Another image than the one named after case and stack."""
    memory: str | None = None
    """The most memory of the container, as docker writes it; swap is not granted on top."""
    keep: bool = False
    """Leave the container when it has ended."""


@dataclass(frozen=True)
class Container:
    """One container, before it exists."""

    image: str
    """As a person names it."""
    name: str
    run: str
    arguments: tuple[str, ...]
    """What follows the image's entry point."""
    environment: Mapping[str, str]
    labels: Mapping[str, str]
    folders: tuple[Folder, ...]
    grants: Grants
    user: str | None
    """`UID:GID`; None: the image's own."""
    groups: tuple[str, ...]
    network: str
    memory: int | None
    """Bytes."""

    def with_digest(self, digest: str) -> Container:
        """The same, told which image it is, which an image cannot know of itself."""
        return replace(self, environment={**self.environment, DIGEST_VARIABLE: digest})

    def of_rootless_engine(self) -> Container:
        """The same for an engine that runs as the caller, whose root in a container is the caller outside."""
        return replace(self, user="0:0", groups=self.grants.groups) if self.folders else self


def image_name(request: RunRequest) -> str:
    """The image of a case on a stack, as `flagbench build` names it."""
    return f"flagbench/{request.case.name}:{request.stack.name}"


def plan(request: RunRequest, options: DockerOptions, environment: Mapping[str, str], host: Host) -> Container:
    """The container of a run. Raises FlagbenchError for a folder or an option that cannot be used.

    Network: the host's for several nodes, whose ranks listen on ports that nobody knows beforehand; else one of
    the container's own, on which no port is published. User: the caller where the run reads or writes the caller's
    folders, so that it may do what the caller may and its files are the caller's; else the image's own; root where a
    device demands it.
    """
    inside, folders = mount_folders(request)
    granted = grants(request.stack.docker, request.nodes, host)
    run = _run_id(request)
    if request.nodes == 1:
        # Of several nodes nobody here knows the others' name for the run; node 0 tells them its own.
        inside = replace(inside, run_id=run)
    as_caller = bool(folders) and not granted.root
    return Container(
        image=image_name(request) if options.image is None else _reference(options.image),
        name=f"flagbench-{run}-{secrets.token_hex(3)}",
        run=run,
        arguments=tuple(inside.arguments()[1:]),  # the entry point names the case itself
        environment=passed_on(environment, request.stack, request.nodes),
        labels={RUN_LABEL: run},
        folders=folders,
        grants=granted,
        user="0:0" if granted.root else f"{host.uid}:{host.gid}" if as_caller else None,
        groups=granted.groups + (tuple(str(group) for group in host.groups) if as_caller and host.uid else ()),
        network="host" if request.nodes > 1 else "bridge",
        memory=None if options.memory is None else memory_limit(options.memory),
    )


def _reference(image: str) -> str:
    if _REFERENCE.fullmatch(image) is None:
        raise FlagbenchError(
            f"--image cannot be {image!r}", remedy="write a name like flagbench/distilbert:cpu, or sha256:..."
        )
    return image


def _run_id(request: RunRequest) -> str:
    if request.run_id is None:
        return f"run-{uuid.uuid4().hex[:12]}"
    if _RUN_ID.fullmatch(request.run_id) is None:
        raise FlagbenchError(
            f"--run-id cannot be {request.run_id!r}",
            remedy="use at most 128 letters, digits, '.', '_' and '-', a letter or digit first",
        )
    return request.run_id
