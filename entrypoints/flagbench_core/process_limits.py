"""The limits on processors, processes, threads and open files, and the errors of one that is reached."""

import errno
import os
import re
import resource
from typing import List, Optional

RANKS_PER_PROCESSOR = 4
"""At most so many ranks share a processor: two processors take the layouts of a node of eight devices."""
REMEDY = "raise that limit, or use fewer --gpus or workers"
_TEXT = re.compile(
    r"^resource temporarily unavailable|can't start new thread|pthread_create|thread creation failed", re.IGNORECASE
)


def usable_processors() -> int:
    """The logical processors that this process may use: fewer where it was pinned, by taskset or a cpuset."""
    return len(os.sched_getaffinity(0))


def excess_of_ranks(ranks: int) -> Optional[str]:
    """Why the processors here are too few for so many ranks of the cpu stack; None where they are not."""
    processors = usable_processors()
    most = RANKS_PER_PROCESSOR * processors
    if ranks <= most:
        return None
    return "--gpus %d: on cpu it is the number of ranks; %d usable processor(s) take at most %d" % (
        ranks,
        processors,
        most,
    )


def is_refusal(error: BaseException) -> bool:
    """Whether an error says that no process or thread could be started (EAGAIN), or no file opened (EMFILE)."""
    if no_descriptor(error):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno == errno.EAGAIN
    return isinstance(error, (RuntimeError, OSError)) and _TEXT.search(str(error)) is not None


def no_descriptor(error: BaseException) -> bool:
    """Whether an error says that this process may open no more files."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno == errno.EMFILE
    return isinstance(error, (RuntimeError, OSError)) and os.strerror(errno.EMFILE) in str(error)


def check_descriptors(count: int) -> None:
    """Raise OSError (EMFILE) unless this process may open `count` more files."""
    opened: List[int] = []
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
        return "no more files can be opened (%s): ulimit -n is %d" % (os.strerror(errno.EMFILE), number)
    limits = []
    number = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if number != resource.RLIM_INFINITY and os.geteuid() != 0:  # it does not apply to root
        limits.append("ulimit -u is %d" % number)
    for folder in cgroup_folders("pids"):
        try:
            with open(os.path.join(folder, "pids.max"), encoding="utf-8") as file:
                limits.append("the control group's pids.max (docker run --pids-limit) is %d" % int(file.read()))
            break
        except (OSError, ValueError):  # ValueError: max, which is no limit
            continue
    named = " and ".join(limits) or "the kernel's limits are kernel.threads-max and kernel.pid_max"
    return "no more processes or threads can be started (%s): %s" % (os.strerror(errno.EAGAIN), named)


def cgroup_folders(controller: str) -> List[str]:
    """The folder of this process's cgroup (version 1 or 2), and that of its root.

    In a container the path is that on the host, but only the container's own cgroup is mounted, as the root.
    """
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = [line.strip().split(":", 2) for line in file]
    except OSError:
        return []
    first = [path for _, controllers, path in lines if controller in controllers.split(",")]
    second = [path for _, controllers, path in lines if controllers == ""]
    root = "/sys/fs/cgroup/" + controller if first else "/sys/fs/cgroup"
    return [root + path for path in (first or second)[:1]] + [root]
