"""The processes of a run as seen by the kernel: their descendants, states, termination, and out-of-memory kills.

The parent process of a node uses it to end everything that a run started, and to say why a rank ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time

from flagbench_core.process_limits import cgroup_folders

# linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_KILL_SECONDS = 3.0
"""How long killed processes are waited for. One that is blocked in a driver call may never end."""
_POLL_SECONDS = 0.02


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that all can be ended."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on; None if there is no such process.

    The name before the state is in parentheses, and may contain anything.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None


def state(pid: int) -> str | None:
    """The kernel's one-letter state (T stopped, Z zombie), or None if there is no such process."""
    fields = _stat(pid)
    if not fields:
        return None
    return fields[0]


def descendants(root: int) -> set[int]:
    """Live descendants of `root`, without zombies."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _stat(int(name))
            if fields and fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(name))
    pids: set[int] = set()
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), []):
            if child not in pids:
                pids.add(child)
                waiting.append(child)
    return pids


def collect_zombies() -> None:
    """Reap children that have ended, including adopted ones."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


def end_all(root: int, grace: float = 1.0, spare: set[int] | None = None) -> None:
    """End every descendant of `root` except `spare`: SIGTERM, and after `grace` seconds SIGKILL.

    A stopped process does not handle SIGTERM, but SIGKILL ends it.
    """
    spare = spare or set()
    deadline = time.monotonic() + grace
    _signal(descendants(root) - spare, signal.SIGTERM)
    while descendants(root) - spare and time.monotonic() < deadline:
        collect_zombies()
        time.sleep(_POLL_SECONDS)
    kill_all(root, spare)


def kill_all(root: int, spare: set[int] | None = None) -> None:
    """Kill every descendant of `root` except `spare` (SIGKILL), and those that they start meanwhile."""
    spare = spare or set()
    deadline = time.monotonic() + _KILL_SECONDS
    while time.monotonic() < deadline:
        alive = descendants(root) - spare
        if not alive:
            return
        _signal(alive, signal.SIGKILL)
        collect_zombies()
        time.sleep(_POLL_SECONDS)


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):  # it has ended, or runs as another user
            continue


def oom_kills(folder: str | None = None) -> int | None:
    """Number of OOM kills in a memory cgroup (default: this process's own).

    Read from `memory.events` (version 2) or `memory.oom_control` (version 1); None if neither has it.
    """
    for cgroup in [folder] if folder is not None else cgroup_folders("memory"):
        for name in ("memory.events", "memory.oom_control"):
            try:
                with open(os.path.join(cgroup, name), encoding="utf-8") as file:
                    counts = dict(line.split()[:2] for line in file)
                return int(counts["oom_kill"])
            except (OSError, ValueError, KeyError):
                continue
    return None


def refused_forks() -> int:
    """Number of processes and threads denied by the limit of this process's pids cgroup (version 1 or 2)."""
    for folder in cgroup_folders("pids"):
        try:
            with open(os.path.join(folder, "pids.events"), encoding="utf-8") as file:
                return int(file.read().split()[1])  # the file is `max COUNT`
        except (OSError, ValueError, IndexError):
            continue
    return 0


def describe_exit(code: int | None) -> str | None:
    """An exit status as text: `exit 1`, `SIGKILL`."""
    if code is None:
        return None
    if code >= 0:
        return f"exit {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
