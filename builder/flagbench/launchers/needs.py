"""What a container of a stack is granted: devices, groups, capabilities, limits, and never `--privileged`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from flagbench.catalog.model import DockerNeeds
from flagbench.errors import FlagbenchError
from flagbench.launchers.host import Host

LEAST_MEMORY = 6 * 2**20
"""Bytes; the engine refuses less."""
_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30}


@dataclass(frozen=True)
class Grants:
    """What a stack's manifest asks for, resolved on one machine."""

    gpus: str | None
    devices: tuple[str, ...]
    groups: tuple[str, ...]
    """Numbers; a name only where this machine has no such group, and then the image must have it."""
    capabilities: tuple[str, ...]
    shm_size: str
    ulimits: Mapping[str, int]
    root: bool


def grants(needs: DockerNeeds, nodes: int, host: Host) -> Grants:
    """What to grant a container that is one of `nodes`.

    A device of several nodes' runs, like InfiniBand's, is granted where the machine has it: without it they talk
    over TCP, and its capability would be granted for nothing.
    """
    fabric = tuple(device for device in needs.multi_node_devices if nodes > 1 and host.exists(device))
    # By number: the name of a group, if the image knows it at all, may have another number there.
    numbers = ((name, host.group_id(name)) for name in needs.groups)
    return Grants(
        gpus=needs.gpus,
        devices=needs.devices + fabric,
        groups=tuple(name if number is None else str(number) for name, number in numbers),
        capabilities=needs.capabilities + (needs.multi_node_capabilities if fabric else ()),
        shm_size=needs.shm_size,
        ulimits=needs.ulimits,
        root=needs.root,
    )


def size_in_bytes(text: str, option: str) -> int:
    """A size as docker writes it (512m, 2g; a bare number is bytes). Raises FlagbenchError (usage)."""
    found = re.fullmatch(r"([1-9][0-9]{0,14})([bkmg]?)", text.lower())
    if found is None:
        raise FlagbenchError(
            f"{option} {text!r} is not a size", remedy=f"write a number and m or g, like {option} 2g"
        )
    return int(found[1]) * _UNITS[found[2]]


def memory_limit(text: str) -> int:
    """The value of `--memory`, bytes. Raises FlagbenchError (usage) for an invalid or too small size."""
    size = size_in_bytes(text, "--memory")
    if size < LEAST_MEMORY:
        raise FlagbenchError(f"--memory {text} is less than a container can have", remedy="give 6m or more")
    return size
