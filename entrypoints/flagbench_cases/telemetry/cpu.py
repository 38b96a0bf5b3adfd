"""CPU and memory usage of the node, and the resident memory of a process tree, read from /proc.

Not through psutil: one pass over /proc gives both the tree and its memory with a third of the CPU time, and the
sampler starts without large imports.
"""

import os
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

# Reading a core's clock may interrupt that core, so on large nodes only a few are read.
_CLOCKED_CORES = 8

# More than the size of any file read here, except /proc/stat, of which the first line is sufficient.
_HEAD_BYTES = 8192


class _Process(NamedTuple):
    parent: int
    rss_pages: int


class CpuProbe:
    """Samples the node's CPUs and memory, and the process tree below `pid`.

    In a container the values are still those of the node, not of the container's quota. `proc` and `sys` are the
    mount points of the two file systems.
    """

    def __init__(self, pid: int, proc: str = "/proc", sys: str = "/sys") -> None:
        self._pid = pid
        self._proc = proc
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._times: Optional[Tuple[int, int]] = None
        self._clock_files = _clock_files(sys)

    def tree(self) -> Set[int]:
        """Process ids of the tree: `pid` and all its live descendants."""
        return _tree(self._pid, self._processes())

    def sample(self) -> Dict[str, Any]:
        """One sample; values not available on this machine are absent.

        `util` (fraction of all logical CPUs that was not idle since the sample before, absent in the first),
        `load1`, `mem_used_bytes`, `mem_available_bytes`, `rss_bytes` (sum over the tree without this process:
        pages shared between processes count once in each) and `freq_mhz` (mean of up to 8 cores).
        """
        values = {
            "util": self._util(),
            "load1": self._load1(),
            "rss_bytes": self._rss_bytes(),
            "freq_mhz": self._freq_mhz(),
        }
        values.update(self._memory())
        return {key: value for key, value in values.items() if value is not None}

    def _util(self) -> Optional[float]:
        line = self._read("stat").partition("\n")[0].split()
        if len(line) < 6:
            return None
        # user nice system idle iowait irq softirq steal; guest time after them is already part of user time.
        ticks = [int(field) for field in line[1:9]]
        total, idle = sum(ticks), ticks[3] + ticks[4]
        before, self._times = self._times, (total, idle)
        if before is None or total <= before[0]:
            return None
        busy = 1.0 - (idle - before[1]) / (total - before[0])
        # iowait may run backwards on some kernels.
        return round(min(max(busy, 0.0), 1.0), 4)

    def _load1(self) -> Optional[float]:
        fields = self._read("loadavg").split()
        return float(fields[0]) if fields else None

    def _memory(self) -> Dict[str, int]:
        sizes = {}
        for line in self._read("meminfo").splitlines():
            name, _, rest = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                sizes[name] = int(rest.split()[0]) * 1024
        if len(sizes) < 2:
            return {}
        available = sizes["MemAvailable"]
        return {"mem_used_bytes": sizes["MemTotal"] - available, "mem_available_bytes": available}

    def _rss_bytes(self) -> Optional[int]:
        processes = self._processes()
        tree = _tree(self._pid, processes) - {os.getpid()}
        return sum(processes[pid].rss_pages for pid in tree) * self._page if tree else None

    def _freq_mhz(self) -> Optional[float]:
        clocks = [int(text) / 1000 for text in map(_read_text, self._clock_files) if text.strip().isdigit()]
        return round(sum(clocks) / len(clocks), 1) if clocks else None

    def _processes(self) -> Dict[int, _Process]:
        found = {}
        for entry in os.listdir(self._proc):
            if not entry.isdigit():
                continue
            # The command's name is in brackets and may contain anything, including brackets and spaces.
            fields = self._read(entry + "/stat").rpartition(")")[2].split()
            if len(fields) > 21:
                found[int(entry)] = _Process(parent=int(fields[1]), rss_pages=int(fields[21]))
        return found

    def _read(self, name: str) -> str:
        return _read_text(self._proc + "/" + name)


def _tree(root: int, processes: Dict[int, _Process]) -> Set[int]:
    children: Dict[int, List[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    found: Set[int] = set()
    waiting = [root] if root in processes else []
    while waiting:
        pid = waiting.pop()
        found.add(pid)
        waiting.extend(children.get(pid, []))
    return found


def _clock_files(sys: str) -> List[str]:
    """Clock files of a few cores spread over the node.

    /proc/cpuinfo has clocks too, but reading it once a second would interrupt every core of the node.
    """
    cores = os.cpu_count() or 1
    step = max(1, cores // _CLOCKED_CORES)
    paths = ["%s/devices/system/cpu/cpu%d/cpufreq/scaling_cur_freq" % (sys, core) for core in range(0, cores, step)]
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
