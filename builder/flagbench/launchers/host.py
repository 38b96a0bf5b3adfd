"""What a container depends on of this machine: the user, the groups, the device nodes."""

from __future__ import annotations

import grp
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Host:
    """This machine and its user, even if the engine runs on another machine."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    """The caller's further groups."""
    exists: Callable[[str], bool]
    """Whether a device node, or a folder of them, is there."""
    group_id: Callable[[str], int | None]
    """The number of a group; None if this machine has no such group."""


def this_host() -> Host:
    """The machine and the user that this process has."""
    gid = os.getegid()
    groups = tuple(sorted(set(os.getgroups()) - {gid}))
    return Host(os.geteuid(), gid, groups, lambda path: Path(path).exists(), _group_id)


def _group_id(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None
