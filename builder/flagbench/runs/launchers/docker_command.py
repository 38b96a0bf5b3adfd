"""Plans the container of a run: its specification as plain data, and the `docker run` command that starts it.

Nothing is started here; `engine_container` runs the command.
"""

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
from flagbench.image_reference import try_parse_reference
from flagbench.images.bucket import is_in_bucket, parse_bucket_image
from flagbench.manifests.stack import DockerNeeds
from flagbench.options import Text
from flagbench.runs.launchers.container_environment import passed_on
from flagbench.runs.launchers.folders import BUNDLE, Folder, mount_folders
from flagbench.runs.request import RunRequest, new_run_id

RUN_LABEL = "dev.flagbench.run"
"""The label that every container of a run has, with the run's id as its value. `docker ps --filter
label=dev.flagbench.run` lists these containers."""
_MEMORY_SIZE = re.compile(r"[1-9][0-9]{0,14}[mgMG]")
"""A value of --memory: mebibytes or gibibytes."""
_NAME_BYTES = 3
"""Random bytes at the end of a container's name, so that a run that is repeated gets another name."""
_LINE_END = "\r\n"
"""The characters that end a line."""


@dataclass(frozen=True)
class DockerOptions:
    """The options of a run that are about its container."""

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
    """This machine and the user of this process. The engine may run on another machine."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    """The numbers of the user's supplementary groups."""
    exists: Callable[[str], bool]
    """Returns whether a device node, or a folder of them, exists."""
    group_id: Callable[[str], int | None]
    """Returns the number of the group of that name; None if this machine has no such group."""

    def grants(self, needs: DockerNeeds, nodes: int) -> DockerNeeds:
        """The part of a stack's needs that this machine grants to the container of one of `nodes` nodes.

        Devices for runs on several nodes, such as InfiniBand's, are granted if the machine has them. Otherwise the
        nodes communicate over TCP, and the capability for these devices is not granted either.
        """
        network_devices: list[str] = []
        if nodes > 1:
            network_devices = [device for device in needs.multi_node.devices if self.exists(device)]
        capabilities = needs.capabilities
        if network_devices:
            capabilities += needs.multi_node.capabilities
        return replace(
            needs,
            devices=(*needs.devices, *network_devices),
            groups=tuple(self._group_number(name) for name in needs.groups),
            capabilities=capabilities,
        )

    def _group_number(self, name: str) -> str:
        """The number of a group on this machine as text: the image may have another number for the same name.

        It is the name itself if this machine has no such group; then the image must have it.
        """
        number = self.group_id(name)
        if number is None:
            return name
        return str(number)


def this_host() -> Host:
    """This machine and the user of this process."""
    gid = os.getegid()
    groups = tuple(sorted(set(os.getgroups()) - {gid}))
    return Host(os.geteuid(), gid, groups, lambda path: Path(path).exists(), _group_id)


def _group_id(name: str) -> int | None:
    """The number of a group of this machine; None if there is no such group."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


@dataclass(frozen=True)
class Container:
    """Specification of a container."""

    image: str
    """The image as the user names it; for an image in a bucket, the name that it gets when it is pulled."""
    name: str
    run: str
    """The id of the run."""
    arguments: tuple[str, ...]
    """Arguments of the image's entry point."""
    environment: Mapping[str, str]
    folders: tuple[Folder, ...]
    grants: DockerNeeds
    """The needs of the stack that this machine grants: devices, groups, capabilities, shared memory."""
    user: str | None = None
    """`UID:GID`; None: the user that the image names."""
    groups: tuple[str, ...] = ()
    network: str = "bridge"
    memory: str | None = None
    """The memory limit in docker's format, such as 64g; None: no limit."""

    def command(self, *options: str) -> list[str]:
        """The words of `docker run` for this container, with further `options`. Docker does not pull the image.

        Each value is in one word with its option, so that no value can be read as another option.
        """
        granted = self.grants
        words = ["docker", "run", *options, "--pull=never", f"--label={RUN_LABEL}={self.run}"]
        words += [f"--env={name}={value}" for name, value in self.environment.items()]
        if self.user:
            words.append(f"--user={self.user}")
        words.append(f"--network={self.network}")
        if granted.gpus:
            words.append(f"--gpus={granted.gpus}")
        words += [f"--device={device}" for device in granted.devices]
        words += [f"--group-add={group}" for group in self.groups]
        words += [f"--cap-add={capability}" for capability in granted.capabilities]
        words.append(f"--shm-size={granted.shm_size}")
        words += [f"--ulimit={name}={limit}" for name, limit in sorted(granted.ulimits.items())]
        if self.memory is not None:
            # Without --memory-swap the engine grants the same amount of swap, and a run that swaps measures the disk.
            words += [f"--memory={self.memory}", f"--memory-swap={self.memory}"]
        words += [f"--mount={_mount(folder)}" for folder in self.folders]
        return [*words, self.image, *self.arguments]

    def rootless(self) -> Container:
        """The same container for a rootless engine, where root in a container is the caller outside.

        Without folders of the caller, it keeps the image's user.
        """
        if not self.folders:
            return self
        return replace(self, user="0:0", groups=self.grants.groups)


def _mount(folder: Folder) -> str:
    """The value of `--mount`, which docker reads as one line of CSV."""
    fields = ["type=bind", f"source={folder.source}", f"target={folder.target}"]
    if not folder.writable:
        fields.append("readonly")
    line = io.StringIO()
    # The writer quotes a field with a line break only if that is a character of its line terminator. So the
    # terminator cannot be empty, and is removed again.
    csv.writer(line, lineterminator=_LINE_END).writerow(fields)
    return line.getvalue().removesuffix(_LINE_END)


def plan_container(
    request: RunRequest, options: DockerOptions, environment: Mapping[str, str], host: Host
) -> Container:
    """Plan the container of a run. Raises FlagbenchError for a folder or an option that cannot be used.

    Network: that of the host for several nodes, whose ranks listen on ports chosen at run time; otherwise the
    container has its own network, and no port is published.

    User: root if a device needs it. Otherwise the caller if the run reads or writes folders of the caller, so that
    it has the caller's permissions and its files belong to the caller. Otherwise the user that the image names.
    """
    inside, folders = mount_folders(request.options)
    if request.bundle is not None:
        folders += (Folder(request.bundle, BUNDLE, writable=True),)
    if options.memory is not None and _MEMORY_SIZE.fullmatch(options.memory) is None:
        raise FlagbenchError(
            f"--memory {options.memory!r} is not a size", remedy="write a number and m or g, like --memory 64g"
        )
    several_nodes = request.options.nodes > 1
    granted = host.grants(request.stack.docker, request.options.nodes)
    run = request.options.run_id or new_run_id()
    if not several_nodes:
        # With several nodes, node 0 makes the run id and sends it to the others.
        inside = replace(inside, run_id=run)
    arguments = inside.image_arguments()
    if request.bundle is not None:
        arguments.append(f"--bundle={BUNDLE}")
    user: str | None = None
    groups = granted.groups
    if granted.root:
        user = "0:0"
    elif folders:
        user = f"{host.uid}:{host.gid}"
        if host.uid != 0:
            groups += tuple(str(group) for group in host.groups)
    return Container(
        image=_image_name(request, options),
        name=f"flagbench-{run}-{secrets.token_hex(_NAME_BYTES)}",
        run=run,
        arguments=tuple(arguments),
        environment={**passed_on(environment, request.stack, request.options.nodes), **request.environment},
        folders=folders,
        grants=granted,
        user=user,
        groups=groups,
        network="host" if several_nodes else "bridge",
        memory=options.memory,
    )


def _image_name(request: RunRequest, options: DockerOptions) -> str:
    """The name by which the engine has the image of a run. Raises FlagbenchError (USAGE) for a malformed one."""
    image = request.image if options.image is None else options.image
    if is_in_bucket(image):
        image = parse_bucket_image(image).local_name
    if try_parse_reference(image) is None:
        raise FlagbenchError(
            f"--image {image!r} is not an image", remedy="write a name like flagbench/distilbert:cpu, or sha256:..."
        )
    return image
