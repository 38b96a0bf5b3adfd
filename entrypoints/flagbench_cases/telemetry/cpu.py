"""CPU and memory usage of the node, of a process tree, and of everything else, read from /proc.

Not through psutil: one pass over /proc gives both the tree and its memory with a third of the CPU time, and the
sampler starts without large imports. Even that pass is left out while no process or thread starts on the machine.
"""

from __future__ import annotations

import os
from typing import Any, Iterable, NamedTuple

from flagbench_cases.telemetry.quota import Quota

_CLOCKED_CORES = 8
"""The number of cores whose clocks are read. Reading a core's clock may interrupt that core."""
_HEAD_BYTES = 8192
"""More than the size of any file read here, except /proc/stat, whose first line is sufficient."""
_UNKNOWN_IDS = ("", "0")
"""What stands for the id of the newest process if it is not known: gVisor's /proc/loadavg has only zeros."""


class _Process(NamedTuple):
    """A process of the node."""

    parent: int
    """The id of its parent process."""
    rss_pages: int
    """Its resident memory, pages."""
    ticks: int
    """Processor time of the process and of its children that have ended, clock ticks."""


class _Ticks(NamedTuple):
    """Processor time since the start of the machine, clock ticks."""

    total: int
    """The time of all processors."""
    idle: int
    """The part of `total` in which processors were idle."""
    steal: int
    """The part of `total` that the hypervisor gave to other virtual machines."""
    tree: int
    """The time that the process tree used."""


class CpuProbe:
    """Samples the node's CPUs and memory, and the process tree below `pid`.

    In a container the values are still those of the node, except `quota` and `throttled`. `proc` and `sys` are the
    mount points of the two file systems.
    """

    def __init__(self, pid: int, proc: str = "/proc", sys: str = "/sys") -> None:
        self._pid = pid
        self._proc = proc
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._ticks: _Ticks | None = None
        """The ticks at the last sample; None before the first."""
        self._known: dict[int, _Process] = {}
        """The process tree as of the last sample."""
        self._newest = ""
        """The id that the kernel had given out last when all processes were read, of a process or thread."""
        self._clock_files = _clock_files(sys)
        self._quota = Quota(pid, proc, sys)

    def tree(self) -> set[int]:
        """Process ids of the tree: `pid` and all its live descendants."""
        return set(self._tree_processes())

    def sample(self) -> dict[str, Any]:
        """Read one sample; values not available on this machine are absent.

        Since the last sample, so absent in the first: `util` (fraction of all logical CPUs that was not idle),
        `others` (logical CPUs that processes outside the tree kept busy), `steal` (fraction that other virtual
        machines took).

        Now: `load1`, `mem_used_bytes`, `mem_available_bytes`, `rss_bytes` (sum over the tree without this process:
        pages shared between processes count once in each), `freq_mhz` (mean of up to 8 cores), `quota` (logical CPUs
        that the tree may use) and `throttled` (periods so far, and those that used up the quota).
        """
        tree = self._tree_processes()
        sizes = [process.rss_pages for pid, process in tree.items() if pid != os.getpid()]
        rss_bytes = None
        if sizes:
            rss_bytes = sum(sizes) * self._page_bytes
        tree_ticks = sum(process.ticks for process in tree.values())
        values = {
            **self._measure_usage(tree_ticks),
            "load1": self._load1(),
            "rss_bytes": rss_bytes,
            "freq_mhz": self._freq_mhz(),
            **self._memory(),
            **self._quota.sample(),
        }
        return {key: value for key, value in values.items() if value is not None}

    def _measure_usage(self, tree_ticks: int) -> dict[str, float]:
        """`util`, `steal` and `others` since the last call, which is remembered; empty in the first call.

        `tree_ticks`: the processor time of the process tree until now.
        """
        line = self._read("stat").partition("\n")[0].split()
        if len(line) < 9:
            return {}
        # user nice system idle iowait irq softirq steal; guest time after them is already part of user time.
        ticks = [int(field) for field in line[1:9]]
        now = _Ticks(sum(ticks), ticks[3] + ticks[4], ticks[7], tree_ticks)
        before = self._ticks
        self._ticks = now
        if before is None or now.total <= before.total:
            return {}
        total = now.total - before.total
        idle = now.idle - before.idle
        steal = now.steal - before.steal
        tree = now.tree - before.tree
        others = (total - idle - steal - tree) / total * (os.cpu_count() or 1)
        # Differences may be negative: iowait runs backwards on some kernels, and the ticks of a process that ends
        # are no longer counted.
        return {
            "util": round(_clip(1.0 - idle / total), 4),
            "steal": round(_clip(steal / total), 4),
            "others": round(max(others, 0.0), 4),
        }

    def _load1(self) -> float | None:
        """The load average of the last minute."""
        fields = self._read("loadavg").split()
        if not fields:
            return None
        return float(fields[0])

    def _memory(self) -> dict[str, int]:
        """The used and the available memory of the node, bytes."""
        sizes = {}
        for line in self._read("meminfo").splitlines():
            name, _, rest = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                sizes[name] = int(rest.split()[0]) * 1024
        if len(sizes) < 2:
            return {}
        available = sizes["MemAvailable"]
        return {"mem_used_bytes": sizes["MemTotal"] - available, "mem_available_bytes": available}

    def _freq_mhz(self) -> float | None:
        """The mean clock of a few cores, MHz."""
        clocks = []
        for path in self._clock_files:
            text = _read_text(path)
            if text.strip().isdigit():
                clocks.append(int(text) / 1000)
        if not clocks:
            return None
        return round(sum(clocks) / len(clocks), 1)

    def _tree_processes(self) -> dict[int, _Process]:
        """The process tree. All processes of the machine are read only if one has started since the last call."""
        newest = self._read("loadavg").rpartition(" ")[2].strip()
        if newest not in _UNKNOWN_IDS and newest == self._newest:
            self._known = self._processes(self._known)
        else:
            self._newest = newest  # read before the processes: one that starts meanwhile is noticed at the next call
            everything = self._processes(int(entry) for entry in os.listdir(self._proc) if entry.isdigit())
            self._known = {pid: everything[pid] for pid in _tree(self._pid, everything)}
        return self._known

    def _processes(self, pids: Iterable[int]) -> dict[int, _Process]:
        """Those of the processes that exist, by their id; see proc(5) for the fields of /proc/PID/stat."""
        processes = {}
        for pid in pids:
            # The command's name is in brackets and may contain anything, including brackets and spaces.
            fields = self._read(f"{pid}/stat").rpartition(")")[2].split()
            if len(fields) > 21:
                processes[pid] = _Process(
                    parent=int(fields[1]), rss_pages=int(fields[21]), ticks=sum(map(int, fields[11:15]))
                )
        return processes

    def _read(self, name: str) -> str:
        return _read_text(self._proc + "/" + name)


def _clip(share: float) -> float:
    return min(max(share, 0.0), 1.0)


def _tree(root: int, processes: dict[int, _Process]) -> set[int]:
    """The ids of `root` and all its descendants among `processes`; empty if it is not one of them."""
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    tree: set[int] = set()
    waiting = []
    if root in processes:
        waiting.append(root)
    while waiting:
        pid = waiting.pop()
        tree.add(pid)
        waiting.extend(children.get(pid, []))
    return tree


def _clock_files(sys: str) -> list[str]:
    """The files with the clocks of a few cores spread over the node.

    /proc/cpuinfo has clocks too, but reading it once a second would interrupt every core of the node.
    """
    cores = os.cpu_count() or 1
    step = max(1, cores // _CLOCKED_CORES)
    paths = [f"{sys}/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq" for core in range(0, cores, step)]
    return [path for path in paths[:_CLOCKED_CORES] if os.path.exists(path)]


def _read_text(path: str) -> str:
    """The start of a file, or an empty string if it cannot be read: a process may end after it was listed.

    It uses system calls, since a text file object would cost several times as much for every process of the node.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, _HEAD_BYTES).decode("ascii", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)
