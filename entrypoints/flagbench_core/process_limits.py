"""The system's limits on processors, processes, threads and open files, and errors that say that one is reached."""

from __future__ import annotations

import errno
import os
import re
import resource

RANKS_PER_PROCESSOR = 4
"""The most ranks that share a processor: two processors are enough for the layouts of a node of eight devices."""
REMEDY = "raise that limit, or use fewer --gpus or workers"
_REFUSED_START = re.compile(
    r"^resource temporarily unavailable|can't start new thread|pthread_create|thread creation failed", re.IGNORECASE
)
"""Messages of Python and torch for a process or thread that could not be started, which have no error number."""


def usable_processors() -> int:
    """The logical processors that this process may use: fewer if it was pinned, by taskset or a cpuset."""
    return len(os.sched_getaffinity(0))


def excess_of_ranks(ranks: int) -> str | None:
    """Why this host has too few processors for `ranks` ranks of the cpu stack; None if it has enough."""
    processors = usable_processors()
    most = RANKS_PER_PROCESSOR * processors
    if ranks <= most:
        return None
    return f"--gpus {ranks}: on cpu it is the number of ranks; {processors} usable processor(s) take at most {most}"


def is_refusal(error: BaseException) -> bool:
    """Whether an error says that no process or thread could be started (EAGAIN), or no file opened (EMFILE)."""
    if no_descriptor(error):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno == errno.EAGAIN
    return isinstance(error, (RuntimeError, OSError)) and _REFUSED_START.search(str(error)) is not None


def no_descriptor(error: BaseException) -> bool:
    """Whether an error says that this process may open no more files."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno == errno.EMFILE
    return isinstance(error, (RuntimeError, OSError)) and os.strerror(errno.EMFILE) in str(error)


def check_descriptors(count: int) -> None:
    """Raise OSError (EMFILE) unless this process may open `count` more files."""
    opened: list[int] = []
    try:
        for _ in range(count):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    finally:
        for descriptor in opened:
            os.close(descriptor)


def reason(error: BaseException) -> str:
    """Why a process or thread could not be started, or a file not opened, with the limits that apply."""
    if no_descriptor(error):
        number = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"no more files can be opened ({os.strerror(errno.EMFILE)}): ulimit -n is {number}"
    limits = []
    number = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if number != resource.RLIM_INFINITY and os.geteuid() != 0:  # it does not apply to root
        limits.append(f"ulimit -u is {number}")
    for folder in cgroup_folders("pids"):
        try:
            with open(os.path.join(folder, "pids.max"), encoding="utf-8") as file:
                limits.append(f"the control group's pids.max (docker run --pids-limit) is {int(file.read())}")
            break
        except (OSError, ValueError):  # ValueError: max, which is no limit
            continue
    named = " and ".join(limits) or "the kernel's limits are kernel.threads-max and kernel.pid_max"
    return f"no more processes or threads can be started ({os.strerror(errno.EAGAIN)}): {named}"


def cgroup_folders(controller: str) -> list[str]:
    """The folder of this process's cgroup (version 1 or 2), then the folder of the root cgroup.

    A container may state the path on the host, while only its own cgroup is mounted, as the root. So a caller tries
    both folders.
    """
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = [line.strip().split(":", 2) for line in file]
    except OSError:
        return []
    for _, controllers, path in lines:
        if controller in controllers.split(","):  # version 1
            root = f"/sys/fs/cgroup/{controller}"
            return [root + path, root]
    root = "/sys/fs/cgroup"
    for _, controllers, path in lines:
        if controllers == "":  # version 2
            return [root + path, root]
    return [root]
