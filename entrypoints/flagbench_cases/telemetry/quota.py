"""How many processors a process may use, by its control group, and how often it used them up."""

from __future__ import annotations

import os
from typing import Any, Iterator, NamedTuple

_V1_FOLDERS = ("cpu", "cpu,cpuacct", "cpuacct,cpu")


class _Limit(NamedTuple):
    cores: float
    folder: str


class Quota:
    """The quota of a process's control group or of the nearest of those above it, whichever is smaller.

    `proc` and `sys` are the mount points of the two file systems; both versions of control groups are read. In a
    container that sees its own group only, that is the container's.
    """

    def __init__(self, pid: int, proc: str = "/proc", sys: str = "/sys") -> None:
        limits = []
        for folder in _folders(pid, proc, sys):
            cores = _cores(folder)
            if cores is not None:
                limits.append(_Limit(cores, folder))
        self._limit = min(limits, default=None)

    def sample(self) -> dict[str, Any]:
        """`quota`, in logical processors, and `throttled`, its periods so far and those in which it was used up;
        empty without a quota."""
        if self._limit is None:
            return {}
        values: dict[str, Any] = {"quota": round(self._limit.cores, 3)}
        lines = _read(os.path.join(self._limit.folder, "cpu.stat")).splitlines()
        counts = dict(line.split()[:2] for line in lines if len(line.split()) > 1)
        if "nr_periods" in counts and "nr_throttled" in counts:
            values["throttled"] = [int(counts["nr_periods"]), int(counts["nr_throttled"])]
        return values


def _folders(pid: int, proc: str, sys: str) -> Iterator[str]:
    """The folders of the groups that limit a process's processors, from its own to the highest that is visible."""
    for line in _read(f"{proc}/{pid}/cgroup").splitlines():
        number, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if number == "0" and not controllers:
            roots = [os.path.join(sys, "fs", "cgroup")]
        elif "cpu" in controllers.split(","):
            roots = [os.path.join(sys, "fs", "cgroup", name) for name in _V1_FOLDERS]
        else:
            continue
        for root in roots:
            yield from _upwards(root, path)


def _upwards(root: str, path: str) -> list[str]:
    """The folders of a group and those above it, which may not all be visible."""
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
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
