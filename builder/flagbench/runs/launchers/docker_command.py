"""The container of a run: its specification as plain data, and the `docker run` command line that starts it."""

from __future__ import annotations

import csv
import grp
import io
import os
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

from typer import Option

from flagbench.errors import FlagbenchError
from flagbench.image_reference import find_reference
from flagbench.images.bucket import is_in_bucket, parse_bucket_image
from flagbench.manifests.stack import DockerNeeds
from flagbench.options import Text
from flagbench.runs.launchers.container_environment import passed_on
from flagbench.runs.launchers.folders import BUNDLE, Folder, mount_folders
from flagbench.runs.request import RunRequest, new_run_id

RUN_LABEL = "dev.flagbench.run"
"""On every container of a run, with the run's id: `docker ps --filter label=dev.flagbench.run` finds them."""


@dataclass(frozen=True)
class DockerOptions:
    """What a user may choose about the container of a run."""

    GROUP: ClassVar[str] = "Container"

    image: Annotated[
        Text,
        Option("--image", metavar="REF", help="With docker: another image than usual, also s3://BUCKET/NAME:TAG."),
    ] = None
    memory: Annotated[
        Text, Option(metavar="SIZE", help="With docker: the container's memory, like 64g; no swap.")
    ] = None
    keep_container: Annotated[
        bool, Option("--keep-container", help="With docker: leave the container when it has ended.")
    ] = False


@dataclass(frozen=True)
class Host:
    """This machine and its user, even if the engine runs on another machine."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    """The caller's supplementary groups."""
    exists: Callable[[str], bool]
    """Whether a device node, or a folder of them, exists."""
    group_id: Callable[[str], int | None]
    """The number of a group; None if this machine has no such group."""

    def grants(self, needs: DockerNeeds, nodes: int) -> DockerNeeds:
        """The needs of a stack as this machine grants them to a container that is one of `nodes`.

        A device of several nodes' runs, like InfiniBand's, is granted where the machine has it: without it they talk
        over TCP, and its capability would be granted for nothing. Groups are numbers, because a name may have another
        number in the image; a name stays only where this machine has no such group, and then the image must have it.
        """
        fabric = tuple(device for device in needs.multi_node.devices if nodes > 1 and self.exists(device))
        numbers = ((name, self.group_id(name)) for name in needs.groups)
        return replace(
            needs,
            devices=needs.devices + fabric,
            groups=tuple(name if number is None else str(number) for name, number in numbers),
            capabilities=needs.capabilities + (needs.multi_node.capabilities if fabric else ()),
        )


def this_host() -> Host:
    """This machine and the user of this process."""
    gid = os.getegid()
    groups = tuple(sorted(set(os.getgroups()) - {gid}))
    return Host(os.geteuid(), gid, groups, lambda path: Path(path).exists(), _group_id)


def _group_id(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


@dataclass(frozen=True)
class Container:
    """Specification of a container."""

    image: str
    """As the user names it; of an image in a bucket the name that it is pulled to."""
    name: str
    run: str
    arguments: tuple[str, ...]
    """Arguments of the image's entry point."""
    environment: Mapping[str, str]
    folders: tuple[Folder, ...]
    grants: DockerNeeds
    """What its stack needs, as this machine has it."""
    user: str | None = None
    """`UID:GID`; None: the image's own."""
    groups: tuple[str, ...] = ()
    network: str = "bridge"
    memory: str | None = None
    """As docker writes it: 64g."""

    def command(self, *options: str) -> list[str]:
        """The words of `docker run`, with further `options` of it. Nothing is ever pulled.

        Each value is in one word with its option, and no shell reads it.
        """
        granted = self.grants
        words = ["docker", "run", *options, "--pull=never", f"--label={RUN_LABEL}={self.run}"]
        words += [f"--env={name}={value}" for name, value in self.environment.items()]
        words += [f"--user={self.user}"] if self.user else []
        words += [f"--network={self.network}"]
        words += [f"--gpus={granted.gpus}"] if granted.gpus else []
        words += [f"--device={device}" for device in granted.devices]
        words += [f"--group-add={group}" for group in self.groups]
        words += [f"--cap-add={capability}" for capability in granted.capabilities]
        words += [f"--shm-size={granted.shm_size}"]
        words += [f"--ulimit={name}={limit}" for name, limit in sorted(granted.ulimits.items())]
        if self.memory is not None:
            # Without the second the engine grants as much swap again, and a run that swaps measures the disk.
            words += [f"--memory={self.memory}", f"--memory-swap={self.memory}"]
        words += [f"--mount={_mount(folder)}" for folder in self.folders]
        return [*words, self.image, *self.arguments]

    def rootless(self) -> Container:
        """The same for an engine that runs as the caller: root in its containers is the caller outside."""
        return replace(self, user="0:0", groups=self.grants.groups) if self.folders else self


def _mount(folder: Folder) -> str:
    """The value of `--mount`, which docker reads as one line of CSV."""
    fields = ["type=bind", f"source={folder.source}", f"target={folder.target}"]
    line = io.StringIO()
    # The end of the line is written, because the writer quotes for its sake, and taken off again.
    csv.writer(line, lineterminator="\r\n").writerow(fields if folder.writable else [*fields, "readonly"])
    return line.getvalue().removesuffix("\r\n")


def plan(request: RunRequest, options: DockerOptions, environment: Mapping[str, str], host: Host) -> Container:
    """The container of a run. Raises FlagbenchError for a folder or an option that cannot be used.

    Network: the host's for several nodes, whose ranks listen on ports chosen at run time; else one of the
    container's own, on which no port is published. User: the caller where the run reads or writes the caller's
    folders, so that it may do what the caller may and its files are the caller's; else the image's own; root where a
    device demands it.
    """
    inside, folders = mount_folders(request.options)
    if request.bundle is not None:
        folders += (Folder(request.bundle, BUNDLE, writable=True),)
    if options.memory is not None and re.fullmatch(r"[1-9][0-9]{0,14}[mgMG]", options.memory) is None:
        raise FlagbenchError(
            f"--memory {options.memory!r} is not a size", remedy="write a number and m or g, like --memory 64g"
        )
    image = request.image if options.image is None else options.image
    if is_in_bucket(image):
        image = parse_bucket_image(image).local_name
    if find_reference(image) is None:
        raise FlagbenchError(
            f"--image {image!r} is not an image", remedy="write a name like flagbench/distilbert:cpu, or sha256:..."
        )
    granted = host.grants(request.stack.docker, request.options.nodes)
    run = request.options.run_id or new_run_id()
    if request.options.nodes == 1:
        # With several nodes, node 0 makes the run id and sends it to the others.
        inside = replace(inside, run_id=run)
    as_caller = bool(folders) and not granted.root
    return Container(
        image=image,
        name=f"flagbench-{run}-{secrets.token_hex(3)}",
        run=run,
        arguments=(*inside.image_arguments(), *([] if request.bundle is None else [f"--bundle={BUNDLE}"])),
        environment={**passed_on(environment, request.stack, request.options.nodes), **request.environment},
        folders=folders,
        grants=granted,
        user="0:0" if granted.root else f"{host.uid}:{host.gid}" if as_caller else None,
        groups=granted.groups + (tuple(str(group) for group in host.groups) if as_caller and host.uid else ()),
        network="host" if request.options.nodes > 1 else "bridge",
        memory=options.memory,
    )
