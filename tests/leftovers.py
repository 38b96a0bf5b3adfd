"""What a test may leave behind in its process, as text: nothing of it may stay for the next one."""

import multiprocessing.resource_tracker
import os
import signal
import sys
import threading
import time
from typing import Any, Dict, List, NamedTuple, Set

import warmup

# What ends of itself, a thread that was told to stop or a process that was killed, is given that long, seconds.
GRACE = 3.0
# torch's loaders watch their workers by SIGCHLD from their first use on.
SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD})
# Threads that a library keeps for the rest of a process.
KEPT_THREADS = {"tqdm_monitor"}
# pytest's own, and what torch, DeepSpeed and transformers set when one of their parts is first used. accelerate sets
# and removes PYTORCH_NVML_BASED_CUDA_CHECK in several threads at once, of which the last may put it back.
UNWATCHED = {
    *("PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "DS_ACCELERATOR"),
    *("PYTORCH_NVML_BASED_CUDA_CHECK", "PYTORCH_CNDEV_BASED_MLU_CHECK", "NCCL_GRAPH_MIXING_SUPPORT"),
}


class Before(NamedTuple):
    """This process before a test."""

    environment: Dict[str, str]
    folder: str
    handlers: Dict[int, Any]
    threads: Set[threading.Thread]
    children: Set[int]
    group: bool


def look() -> Before:
    """This process now."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    return Before(_environment(), _folder(), handlers, set(threading.enumerate()), _children(), _has_group())


def left_behind(before: Before) -> List[str]:
    """What differs from `before`, in words; variables, folder, handlers and process group are put back."""
    left = []
    changed = set(_environment().items()) ^ set(before.environment.items())
    left += ["environment variable %s" % name for name in sorted({name for name, _ in changed})]
    for name in set(_environment()) - set(before.environment):
        del os.environ[name]
    os.environ.update(before.environment)
    if _folder() != before.folder:
        left.append("working directory %s" % _folder())
        os.chdir(before.folder)
    for number, handler in before.handlers.items():
        if signal.getsignal(number) != handler:
            left.append("handler of %s" % signal.Signals(number).name)
            signal.signal(number, handler)
    if _has_group() and not before.group:
        left.append("process group of torch.distributed")
        sys.modules["torch.distributed"].destroy_process_group()
    return left + _still_running(before)


def _still_running(before: Before) -> List[str]:
    deadline = time.monotonic() + GRACE
    while True:
        threads = [t for t in threading.enumerate() if t not in before.threads and t.is_alive()]
        threads = [t for t in threads if t.name not in KEPT_THREADS]
        children = {pid for pid in _children() - before.children if alive(pid)}
        if not (threads or children) or time.monotonic() > deadline:
            return ["thread %s" % t.name for t in threads] + ["child process %s" % _name(pid) for pid in children]
        time.sleep(0.01)


def _environment() -> Dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in UNWATCHED}


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "(removed)"


def _has_group() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _children() -> Set[int]:
    """The children of this process but for those that multiprocessing and warmed-up runs keep for all tests."""
    found: Set[int] = set()
    for task in os.listdir("/proc/self/task"):
        try:
            with open("/proc/self/task/%s/children" % task) as file:
                found.update(map(int, file.read().split()))
        except OSError:  # the thread has ended
            continue
    tracker = getattr(multiprocessing.resource_tracker._resource_tracker, "_pid", None)
    return found - {tracker} - warmup.STARTED


def alive(pid: int) -> bool:
    """Whether a process is more than its exit code, which its parent may not have asked for yet."""
    try:
        with open("/proc/%d/stat" % pid) as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _name(pid: int) -> str:
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return "%d: %s" % (pid, file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip() or "(ended)")
    except OSError:
        return str(pid)
