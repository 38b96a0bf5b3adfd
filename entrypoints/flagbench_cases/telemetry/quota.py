"""Reads the CPU quota of a process's control group: how many processors it may use, and how often it used them up."""

from __future__ import annotations

import os
from typing import Any, Iterator, NamedTuple

_V1_FOLDERS = ("cpu", "cpu,cpuacct", "cpuacct,cpu")
"""The names under which distributions mount the CPU controller of version 1."""


class _Limit(NamedTuple):
    """A quota, and the folder of the control group that has it."""

    cores: float
    folder: str


class Quota:
    """The smallest quota of a process's control group and of the groups above it, both in version 1 and version 2.

    `proc` and `sys` are the mount points of the two file systems. A container that sees only its own group has the
    quota of that group.
    """

    def __init__(self, pid: int, proc: str = "/proc", sys: str = "/sys") -> None:
        limits = []
        for folder in _folders(pid, proc, sys):
            cores = _cores(folder)
            if cores is not None:
                limits.append(_Limit(cores, folder))
        self._limit = min(limits, default=None)

    def sample(self) -> dict[str, Any]:
        """Read `quota`, in logical processors, and `throttled`; empty without a quota.

        `throttled` has the number of the quota's periods so far, and that of the periods in which it was used up.
        """
        if self._limit is None:
            return {}
        values: dict[str, Any] = {"quota": round(self._limit.cores, 3)}
        counts = {}
        for line in _read(os.path.join(self._limit.folder, "cpu.stat")).splitlines():
            words = line.split()
            if len(words) > 1:
                counts[words[0]] = words[1]
        if "nr_periods" in counts and "nr_throttled" in counts:
            values["throttled"] = [int(counts["nr_periods"]), int(counts["nr_throttled"])]
        return values


def _folders(pid: int, proc: str, sys: str) -> Iterator[str]:
    """The folders of the groups that limit a process's processors, from its own to the highest that is visible."""
    for line in _read(f"{proc}/{pid}/cgroup").splitlines():
        fields = line.split(":", 2)
        if len(fields) < 3:
            continue
        number, controllers, path = fields
        if number == "0" and not controllers:  # version 2
            roots = [os.path.join(sys, "fs", "cgroup")]
        elif "cpu" in controllers.split(","):  # version 1
            roots = [os.path.join(sys, "fs", "cgroup", name) for name in _V1_FOLDERS]
        else:
            continue
        for root in roots:
            yield from _upwards(root, path)


def _upwards(root: str, path: str) -> list[str]:
    """The folders of a group and of those above it, which may not all be visible in a container."""
    names = [name for name in path.split("/") if name not in ("", "..")]
    return [os.path.join(root, *names[:depth]) for depth in range(len(names), -1, -1)]


def _cores(folder: str) -> float | None:
    """The quota of one group, in logical processors; None if it has none."""
    words = _read(os.path.join(folder, "cpu.max")).split()  # version 2
    if not words:
        words = [_read(os.path.join(folder, name)) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    try:
        quota, period = map(int, words[:2])
    except ValueError:  # "max", or no such file
        return None
    if quota <= 0 or period <= 0:
        return None
    return quota / period


def _read(path: str) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
