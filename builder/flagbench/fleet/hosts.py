"""Reads a list of nodes, as `sinfo` and `kubectl` print it, and finds its nodes in records."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from flagbench.console.terminal import brief
from flagbench.errors import FlagbenchError
from flagbench.system.files import read_text, reason

NODE_NAME = re.compile(r"(?!(?i:all)$)[A-Za-z0-9][A-Za-z0-9.-]{0,252}")
"""A name that may stand in a command. A leading dash would be an option, and `ALL` is every node of Slurm."""
_PREFIXES = ("node/", "nodes/")
"""What `kubectl get nodes -o name` writes before a name."""
_SEVERAL_NAMES = re.compile(r"[\s,\[]")
"""What a line has that is a range or a list of names, or a table."""


def read_hosts(path: Path, option: str) -> tuple[str, ...]:
    """Return the names in a file, or on standard input for `-`, as `parse_hosts` does.

    Raises FlagbenchError (USAGE), which names the option, also if it cannot be read.
    """
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        cause = "it is not UTF-8 text"
        if isinstance(error, OSError):
            cause = reason(error)
        raise FlagbenchError(
            f"{option} {str(path)!r} cannot be read: {cause}",
            remedy="name a file with a name a line, or - for standard input",
        ) from error
    return parse_hosts(text, option)


def parse_hosts(text: str, option: str) -> tuple[str, ...]:
    """Return the names in a list, a name a line; repeated names and empty lines are left out.

    Raises FlagbenchError (USAGE), which names the option, for an empty list, for a range such as gpu[001-064], and
    for several names a line.
    """
    hosts: list[str] = []
    for line in text.splitlines():
        name = line.strip()
        for prefix in _PREFIXES:
            name = name.removeprefix(prefix)
        if _SEVERAL_NAMES.search(name):
            raise FlagbenchError(
                f"{option}: '{brief(name)}' is not one name",
                remedy="give a name a line, as `sinfo -hN -o %N` or `scontrol show hostnames` print them",
            )
        if name and name not in hosts:
            hosts.append(name)
    if not hosts:
        raise FlagbenchError(f"{option}: the list has no names", remedy="give a name a line")
    return tuple(hosts)


def check_node_names(hosts: Sequence[str], option: str) -> None:
    """Raise FlagbenchError (USAGE), which names the option, for a name that may not stand in a command."""
    for host in hosts:
        if NODE_NAME.fullmatch(host) is None:
            raise FlagbenchError(
                f"{option}: '{brief(host)}' cannot be the name of a node",
                remedy="use letters, digits, '-' and '.', a letter or digit first",
            )


def match_hosts(expected: Sequence[str], recorded: Collection[str]) -> dict[str, str]:
    """Return the name of each expected node by the name that its records have.

    A name with a domain and one without are the same node if no node has exactly that name, and only one matches.
    """
    names = {host: host for host in expected if host in recorded}
    missing = [host for host in expected if host not in names]
    unexpected = [host for host in recorded if host not in names]
    for host in missing:
        same = [name for name in unexpected if _is_same_node(name, host)]
        if len(same) != 1:
            continue
        if [name for name in missing if _is_same_node(name, same[0])] == [host]:
            names[same[0]] = host
    return names


def _is_same_node(one: str, other: str) -> bool:
    """Whether two names differ only in that one of them has a domain."""
    return one.partition(".")[0] == other or one == other.partition(".")[0]
