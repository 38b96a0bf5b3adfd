"""Reads the list of nodes that should have answered, as `sinfo` and `kubectl` print it, and finds them in records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from flagbench.console.terminal import brief
from flagbench.errors import FlagbenchError

_PREFIXES = ("node/", "nodes/")
"""What `kubectl get nodes -o name` writes before a name."""

_BYTE_ORDER_MARK = "\ufeff"
"""What some editors write before the first line."""


def parse_hosts(text: str) -> tuple[str, ...]:
    """Return the names in a list, a name a line; repeated names and empty lines are left out.

    Raises FlagbenchError (USAGE) for an empty list, for a range such as gpu[001-064], and for several names a line.
    """
    hosts: list[str] = []
    for line in text.removeprefix(_BYTE_ORDER_MARK).splitlines():
        name = line.strip()
        for prefix in _PREFIXES:
            name = name.removeprefix(prefix)
        if "[" in name or "," in name:
            raise FlagbenchError(
                f"--hosts: '{brief(name)}' is a range or a list",
                remedy="give a name a line, as `sinfo -hN -o %N` or `scontrol show hostnames` print them",
            )
        if len(name.split()) > 1:
            raise FlagbenchError(
                f"--hosts: '{brief(name)}' is not one name", remedy="give a name a line, without anything else"
            )
        if name and name not in hosts:
            hosts.append(name)
    if not hosts:
        raise FlagbenchError("--hosts: the list has no names", remedy="give a name a line")
    return tuple(hosts)


def match_hosts(expected: Sequence[str], recorded: Collection[str]) -> dict[str, str]:
    """Return the name of each expected node by the name that its records have.

    A name with a domain and one without are the same node if no node has exactly that name, and only one matches.
    """
    names = {host: host for host in expected if host in recorded}
    unmatched_hosts = [host for host in expected if host not in recorded]
    unmatched_records = [host for host in recorded if host not in names]
    by_short_name = Counter(_short_name(host) for host in unmatched_hosts)
    records_by_short_name = Counter(_short_name(host) for host in unmatched_records)
    for recorded_host in unmatched_records:
        short = _short_name(recorded_host)
        if by_short_name[short] != 1 or records_by_short_name[short] != 1:
            continue
        for host in unmatched_hosts:
            one_has_no_domain = short in (host, recorded_host)
            if _short_name(host) == short and one_has_no_domain:
                names[recorded_host] = host
    return names


def _short_name(host: str) -> str:
    """A name without its domain."""
    return host.partition(".")[0]
