"""The processes of a run as the kernel sees them: descendants, their state, their end, out-of-memory kills."""

import ctypes
import os
import signal
import time
from typing import Dict, List, Optional, Set

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that none escapes a clean-up."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, however that happens."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _stat(pid: int) -> Optional[List[str]]:
    """Fields of /proc/PID/stat from the state on (the name before it may hold anything), or None."""
    try:
        with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None


def state(pid: int) -> Optional[str]:
    """The kernel's one-letter state (T stopped, Z dead and not collected), or None if there is no such process."""
    fields = _stat(pid)
    return fields[0] if fields else None


def was_replaced(pid: int) -> bool:
    """Whether a process that was started as this Python runs another program now; False if unknown."""
    try:
        return os.readlink("/proc/%d/exe" % pid) != os.readlink("/proc/self/exe")
    except OSError:
        return False


def descendants(root: int) -> Set[int]:
    """Live processes below `root`, at any depth, zombies left out."""
    children: Dict[int, List[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _stat(int(name))
            if fields and fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(name))
    found: Set[int] = set()
    open_: List[int] = [root]
    while open_:
        for child in children.get(open_.pop(), []):
            if child not in found:
                found.add(child)
                open_.append(child)
    return found


def collect_zombies() -> None:
    """Collect children that have ended, adopted ones among them."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


def end_all(root: int, grace: float = 1.0, spare: Optional[Set[int]] = None) -> None:
    """End every descendant of `root` but `spare`: SIGTERM, and after `grace` seconds SIGKILL.

    A stopped process does not see SIGTERM; SIGKILL ends it all the same.
    """
    spare = spare or set()
    deadline = time.monotonic() + grace
    _signal(descendants(root) - spare, signal.SIGTERM)
    while descendants(root) - spare and time.monotonic() < deadline:
        collect_zombies()
        time.sleep(0.02)
    kill_all(root, spare)


def kill_all(root: int, spare: Optional[Set[int]] = None) -> None:
    """End every descendant of `root` but `spare` by SIGKILL."""
    spare = spare or set()
    deadline = time.monotonic() + 3.0
    while time.monotonic() < deadline:
        left = descendants(root) - spare
        if not left:
            return
        _signal(left, signal.SIGKILL)
        collect_zombies()
        time.sleep(0.02)


def _signal(pids: Set[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def memory_cgroup() -> Optional[str]:
    """The folder of this process's memory cgroup, version 2 or 1, or None."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = [line.strip().split(":", 2) for line in file]
    except OSError:
        return None
    for _, controllers, path in lines:
        if "memory" in controllers.split(","):
            # In a container the path is the host's, while only its own cgroup is mounted.
            return _first_folder("/sys/fs/cgroup/memory" + path, "/sys/fs/cgroup/memory")
    for _, controllers, path in lines:
        if controllers == "":
            return _first_folder("/sys/fs/cgroup" + path, "/sys/fs/cgroup")
    return None


def _first_folder(*paths: str) -> Optional[str]:
    return next((p for p in paths if os.path.isdir(p)), None)


def oom_kills(folder: Optional[str] = None) -> Optional[int]:
    """How many processes of a memory cgroup, by default this process's own, the kernel has killed for memory.

    Read from `memory.events` (version 2) or `memory.oom_control` (version 1); None where neither says it.
    """
    folder = folder or memory_cgroup()
    if folder is None:
        return None
    for name in ("memory.events", "memory.oom_control"):
        try:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                for line in file:
                    key, _, value = line.partition(" ")
                    if key == "oom_kill":
                        return int(value)
        except (OSError, ValueError):
            continue
    return None


def refused_forks() -> int:
    """How many processes and threads the limit of this process's pids cgroup, of either version, has refused."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = [line.strip().split(":", 2) for line in file]
    except OSError:
        return 0
    path = next((p for _, controllers, p in lines if "pids" in controllers.split(",") or controllers == ""), "")
    for folder in ("/sys/fs/cgroup/pids" + path, "/sys/fs/cgroup" + path, "/sys/fs/cgroup/pids", "/sys/fs/cgroup"):
        try:
            with open(os.path.join(folder, "pids.events"), encoding="utf-8") as file:
                return int(file.read().split()[1])
        except (OSError, ValueError, IndexError):
            continue
    return 0


def describe_exit(code: Optional[int]) -> Optional[str]:
    """An exit status in words: `exit 1`, `SIGKILL`."""
    if code is None:
        return None
    if code >= 0:
        return "exit %d" % code
    try:
        return signal.Signals(-code).name
    except ValueError:
        return "signal %d" % -code
