"""CPU and memory usage of the node, of a process tree, and of everything else, read from /proc.

Not through psutil: one pass over /proc gives both the tree and its memory with a third of the CPU time, and the
sampler starts without large imports.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from flagbench_cases.telemetry.quota import Quota

# Reading a core's clock may interrupt that core, so on large nodes only a few are read.
_CLOCKED_CORES = 8

# More than the size of any file read here, except /proc/stat, of which the first line is sufficient.
_HEAD_BYTES = 8192


class _Process(NamedTuple):
    parent: int
    rss_pages: int
    ticks: int  # of processor time, those of its ended children included


class _Ticks(NamedTuple):
    """Ticks of all processors since the start of the machine, but for `tree`: those of the process tree."""

    total: int
    idle: int
    steal: int
    tree: int


class CpuProbe:
    """Samples the node's CPUs and memory, and the process tree below `pid`.

    In a container the values are still those of the node, but for `quota` and `throttled`. `proc` and `sys` are the
    mount points of the two file systems.
    """

    def __init__(self, pid: int, proc: str = "/proc", sys: str = "/sys") -> None:
        self._pid = pid
        self._proc = proc
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._ticks: _Ticks | None = None
        self._clock_files = _clock_files(sys)
        self._quota = Quota(pid, proc, sys)

    def tree(self) -> set[int]:
        """Process ids of the tree: `pid` and all its live descendants."""
        return _tree(self._pid, self._processes())

    def sample(self) -> dict[str, Any]:
        """One sample; values not available on this machine are absent.

        `util` (fraction of all logical CPUs that was not idle since the sample before), `others` (logical CPUs that
        processes outside the tree kept busy), `steal` (fraction that other virtual machines took), all three absent
        in the first sample; `load1`, `mem_used_bytes`, `mem_available_bytes`, `rss_bytes` (sum over the tree without
        this process: pages shared between processes count once in each), `freq_mhz` (mean of up to 8 cores), `quota`
        (logical CPUs that the tree may use) and `throttled` (periods so far, and those that used up the quota).
        """
        processes = self._processes()
        tree = _tree(self._pid, processes)
        sizes = [processes[pid].rss_pages for pid in tree - {os.getpid()}]
        rss_bytes = None
        if sizes:
            rss_bytes = sum(sizes) * self._page
        values = {
            **self._usage(sum(processes[pid].ticks for pid in tree)),
            "load1": self._load1(),
            "rss_bytes": rss_bytes,
            "freq_mhz": self._freq_mhz(),
            **self._memory(),
            **self._quota.sample(),
        }
        return {key: value for key, value in values.items() if value is not None}

    def _usage(self, tree: int) -> dict[str, float]:
        """What the processors did since the last call; `tree`: the ticks of the process tree until now."""
        line = self._read("stat").partition("\n")[0].split()
        if len(line) < 9:
            return {}
        # user nice system idle iowait irq softirq steal; guest time after them is already part of user time.
        ticks = [int(field) for field in line[1:9]]
        now = _Ticks(sum(ticks), ticks[3] + ticks[4], ticks[7], tree)
        before, self._ticks = self._ticks, now
        if before is None or now.total <= before.total:
            return {}
        total, idle, steal, by_tree = (after - earlier for after, earlier in zip(now, before))
        # iowait may run backwards on some kernels, and a process that ends takes its ticks along.
        shares = {"util": 1.0 - idle / total, "steal": steal / total}
        usage = {name: round(min(max(share, 0.0), 1.0), 4) for name, share in shares.items()}
        others = (total - idle - steal - by_tree) / total * (os.cpu_count() or 1)
        return {**usage, "others": round(max(others, 0.0), 4)}

    def _load1(self) -> float | None:
        fields = self._read("loadavg").split()
        if not fields:
            return None
        return float(fields[0])

    def _memory(self) -> dict[str, int]:
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
        clocks = []
        for path in self._clock_files:
            text = _read_text(path)
            if text.strip().isdigit():
                clocks.append(int(text) / 1000)
        if not clocks:
            return None
        return round(sum(clocks) / len(clocks), 1)

    def _processes(self) -> dict[int, _Process]:
        processes = {}
        for entry in os.listdir(self._proc):
            if not entry.isdigit():
                continue
            # The command's name is in brackets and may contain anything, including brackets and spaces.
            fields = self._read(entry + "/stat").rpartition(")")[2].split()
            if len(fields) > 21:
                processes[int(entry)] = _Process(
                    parent=int(fields[1]), rss_pages=int(fields[21]), ticks=sum(map(int, fields[11:15]))
                )
        return processes

    def _read(self, name: str) -> str:
        return _read_text(self._proc + "/" + name)


def _tree(root: int, processes: dict[int, _Process]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    tree: set[int] = set()
    waiting = [root] if root in processes else []
    while waiting:
        pid = waiting.pop()
        tree.add(pid)
        waiting.extend(children.get(pid, []))
    return tree


def _clock_files(sys: str) -> list[str]:
    """Clock files of a few cores spread over the node.

    /proc/cpuinfo has clocks too, but reading it once a second would interrupt every core of the node.
    """
    cores = os.cpu_count() or 1
    step = max(1, cores // _CLOCKED_CORES)
    paths = [f"{sys}/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq" for core in range(0, cores, step)]
    return [path for path in paths[:_CLOCKED_CORES] if os.path.exists(path)]


def _read_text(path: str) -> str:
    """The start of a file, or an empty string if it cannot be read: a process may end after it was listed.

    With system calls, since a text file object costs several times as much, for every process.
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
