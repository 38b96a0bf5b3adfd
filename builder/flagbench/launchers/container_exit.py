"""How a container ended, from the engine's State: exit code, reason and remedy."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flagbench.errors import ExitCode


@dataclass(frozen=True)
class ContainerExit:
    """Why a container left no record; goes into the record that the host writes instead."""

    code: ExitCode
    reason: str
    remedy: str


# Signals by which users and schedulers stop a process.
_STOP_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGXCPU,
)
_OURS = frozenset(ExitCode) - {ExitCode.OK, ExitCode.BUG}
# Exit codes of a process that one of these signals killed.
_STOPPED = {128 + int(number): number for number in _STOP_SIGNALS}
_KILLED = 128 + int(signal.SIGKILL)


def record_in(stdout: bytes) -> bytes:
    """The last line that is a record, with its newline; empty where there is none."""
    for line in reversed(stdout.splitlines()):
        try:
            made = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(made, dict) and str(made.get("schema", "")).startswith("record/"):
            return line + b"\n"
    return b""


def exit_code(record: bytes, ended_with: int | None) -> int:
    """The code of a run that left a record: its container's or process's where it is one of ours, else the record's.

    A record of success is trusted only if the container no longer exists (None); and a container's exit code 0 does
    not turn a record of failure into success.
    """
    try:
        status = json.loads(record)["status"]
        said, well = int(status["exit_code"]), status.get("state", "ok") == "ok"
    except (ValueError, KeyError, TypeError, AttributeError):
        said, well = int(ExitCode.RANK_FAILED), False
    if ended_with in set(ExitCode) - {ExitCode.OK} or (ended_with == ExitCode.OK and well and said == ExitCode.OK):
        return int(ended_with or 0)
    believed = _OURS | {ExitCode.OK} if ended_with is None and well else _OURS
    return said if said in believed else int(ExitCode.RANK_FAILED)


def explain(state: Mapping[str, Any] | None, signalled: int | None, overdue: float | None) -> ContainerExit:
    """Why a container left no record.

    Args:
        state: the engine's State (ExitCode, OOMKilled, Error); None if the container no longer exists.
        signalled: the first signal that this process forwarded, if any.
        overdue: seconds after which the container was killed because it did not follow the signal, if it was.
    """
    by = signal.Signals(signalled).name if signalled is not None else ""
    if overdue is not None:
        reason = f"interrupted by {by}; the container did not end within {overdue:.0f} s and was killed"
        return ContainerExit(ExitCode.INTERRUPTED, reason, "run again")
    if state is None:
        if signalled is not None:
            return ContainerExit(
                ExitCode.INTERRUPTED, f"interrupted by {by}, and the container no longer exists", "run again"
            )
        return ContainerExit(ExitCode.RANK_FAILED, "the container was removed while it ran", "run again")
    code = int(state.get("ExitCode") or 0)
    words = f"(exit code {code}, OOMKilled {str(bool(state.get('OOMKilled'))).lower()})"
    error = " ".join(str(state.get("Error") or "").split())
    said = f": {error}" if error else ""
    if state.get("OOMKilled"):
        return ContainerExit(
            ExitCode.OUT_OF_MEMORY,
            f"the container was killed for memory {words}{said}",
            "give it more memory (--memory), or a smaller batch with --set batch_size=N",
        )
    if signalled is not None:
        return ContainerExit(
            ExitCode.INTERRUPTED, f"interrupted by {by}; the container left no record {words}", "run again"
        )
    if code in _STOPPED:
        name = _STOPPED[code].name
        return ContainerExit(ExitCode.INTERRUPTED, f"the container was ended by {name} {words}{said}", "run again")
    if code == _KILLED:
        return ContainerExit(
            ExitCode.RANK_FAILED,
            f"the container was killed {words}{said}",
            "by `docker kill`, or because the machine was out of memory: see the kernel log",
        )
    ours = ExitCode(code) if code in _OURS else ExitCode.RANK_FAILED
    return ContainerExit(ours, f"the container ended without a record {words}{said}", "see its messages above")
