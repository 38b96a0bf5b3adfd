"""The host of a container: its user, groups and device nodes, and which of them a container is granted."""

from __future__ import annotations

import grp
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from flagbench.manifests.model import DockerNeeds


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
