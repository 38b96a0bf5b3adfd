"""How a container ended, from the engine's State: an exit code of ours, the reason, what to do."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flagbench.errors import ExitCode


@dataclass(frozen=True)
class ContainerExit:
    """Why there is no record, for the one that the host writes."""

    code: ExitCode
    reason: str
    remedy: str


# Signals by which people and schedulers ask a process to end.
ASKING = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGXCPU,
)
_OURS = frozenset(ExitCode) - {ExitCode.OK, ExitCode.BUG}
# What a process ends with that these signals killed before it could say anything.
_ASKED_TO_STOP = {128 + int(number): number for number in ASKING}
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

    Only for a container that is gone (None) is a record of success trusted, and exit 0 does not make a success of
    a record that says otherwise.
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
        state: the engine's State (ExitCode, OOMKilled, Error); None where the container is gone.
        signalled: the first signal that this process handed on, if any.
        overdue: seconds after which the container was killed because it did not follow the signal, if it was.
    """
    by = signal.Signals(signalled).name if signalled is not None else ""
    if overdue is not None:
        reason = f"interrupted by {by}; the container did not end within {overdue:.0f} s and was killed"
        return ContainerExit(ExitCode.INTERRUPTED, reason, "run again")
    if state is None:
        if signalled is not None:
            return ContainerExit(ExitCode.INTERRUPTED, f"interrupted by {by}, and the container is gone", "run again")
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
    if code in _ASKED_TO_STOP:
        name = _ASKED_TO_STOP[code].name
        return ContainerExit(ExitCode.INTERRUPTED, f"the container was ended by {name} {words}{said}", "run again")
    if code == _KILLED:
        return ContainerExit(
            ExitCode.RANK_FAILED,
            f"the container was killed {words}{said}",
            "somebody did (`docker kill`), or the machine was out of memory: the kernel log says it",
        )
    ours = ExitCode(code) if code in _OURS else ExitCode.RANK_FAILED
    return ContainerExit(ours, f"the container ended without a record {words}{said}", "see its messages above")
