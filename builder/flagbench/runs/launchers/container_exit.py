"""Explains how a run's process or container ended, and writes a record for a run that left none.

The launchers `docker` and `native`, and `flagbench prepare` in a container, call this module when their process or
container has ended.
"""

from __future__ import annotations

import json
import platform
import signal
import uuid
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from flagbench.errors import FlagbenchError
from flagbench.runs.launchers.frozen import explain_freeze
from flagbench.runs.request import RunRequest, new_run_id
from flagbench.system.clock import format_utc
from flagbench_core import DIVISION, __version__
from flagbench_core.exit_codes import ExitCode
from flagbench_core.host_name import host_name
from flagbench_core.redaction import redact

_STOP_SIGNALS = {
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU),
}
"""The signals by which users and schedulers stop a process."""
_SIGNALLED = 128
"""The exit code of a process that a signal killed is this number plus the signal's, as in a shell."""
_FAILURE_CODES = frozenset(ExitCode) - {ExitCode.OK, ExitCode.BUG}
"""The exit codes by which a run says how it failed. 1 (BUG) is not among them: every program uses it."""


_UNKNOWN_SECTIONS = ("config", "config_digest", "window", "flops", "work", "quality", "telemetry")
"""Fields of a record that are null if the run left no record of its own."""


@dataclass(frozen=True)
class RunImage:
    """The image of a container, as the record names it."""

    digest: str
    """`REPOSITORY@sha256:...` of its manifest if it was pulled or pushed; otherwise its id."""
    id: str | None
    """`sha256:<64 hex>` of its configuration; None if the engine does not know it (containerd image store)."""
    host: str = ""
    """The name of the machine that the engine runs on, which may not be this one."""

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which the code in the image knows its image and its host."""
        variables = {"FLAGBENCH_IMAGE_DIGEST": self.digest, "FLAGBENCH_HOST": self.host}
        if self.id is not None:
            variables["FLAGBENCH_IMAGE_ID"] = self.id
        return variables


@dataclass(frozen=True)
class RunEnd:
    """The output of a process or a container, and how it ended."""

    printed: bytes
    """Everything that was printed on stdout."""
    code: int | None
    """Exit code; None for a container that no longer exists, -N for a process that signal N ended."""
    signalled: int | None
    """The number of the first signal that was forwarded to it; None if there was none."""
    killed_after: float | None
    """Seconds from the first signal until it was killed for not ending; None if it was not killed."""
    oom_killed: bool = False
    """Whether the kernel killed it because it had too little memory."""
    error: str = ""
    """The engine's message on one line; empty if there is none."""
    frozen_for: float | None = None
    """Seconds for which it was frozen when it was killed for that; None if it was not."""


def find_record(stdout: bytes) -> bytes:
    """The last line of `stdout` that is a record, with its newline; empty if no line is one."""
    for line in reversed(stdout.splitlines()):
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict) and str(document.get("schema", "")).startswith("record/"):
            return line + b"\n"
    return b""


def choose_exit_code(record: bytes, ended_with: int | None) -> int:
    """The exit code of a run that left a record.

    It is the code of the process or container, `ended_with`, if that is one of flagbench's other than 0; otherwise
    the code in the record. The run is a success only if both say so, or if the record does and the container no
    longer exists (`ended_with` is None).
    """
    try:
        status = json.loads(record)["status"]
        recorded = int(status["exit_code"])
        recorded_success = status.get("state", "ok") == "ok" and recorded == ExitCode.OK
    except (ValueError, KeyError, TypeError, AttributeError):
        recorded = int(ExitCode.RANK_FAILED)
        recorded_success = False
    if ended_with is not None and ended_with in set(ExitCode) - {ExitCode.OK}:
        return int(ended_with)
    if recorded_success and ended_with in (ExitCode.OK, None):
        return int(ExitCode.OK)
    if recorded in _FAILURE_CODES:
        return recorded
    return int(ExitCode.RANK_FAILED)


def explain_missing_record(end: RunEnd) -> FlagbenchError:
    """The error that says why a container left no record."""
    if end.frozen_for is not None:
        return explain_freeze(end.frozen_for)
    if end.oom_killed and end.killed_after is None:
        return FlagbenchError(
            f"the container was killed for memory {_state_text(end)}",
            remedy="give it more memory (--memory), or a smaller batch with --set batch_size=N",
            code=ExitCode.OUT_OF_MEMORY,
        )
    stop_signal = _find_stop_signal(end)
    if stop_signal is not None:
        return _explain_interruption(end, stop_signal)
    code = end.code or 0
    if end.code is None:
        reason = "the container was removed while it ran"
        remedy = "run again"
    elif code == _SIGNALLED + signal.SIGKILL:
        reason = f"the container was killed {_state_text(end)}"
        remedy = "by `docker kill`, or because the machine was out of memory: see the kernel log"
    else:
        reason = f"the container ended without a record {_state_text(end)}"
        remedy = "see its messages above"
    error_code = ExitCode(code) if code in _FAILURE_CODES else ExitCode.RANK_FAILED
    return FlagbenchError(reason, remedy=remedy, code=error_code)


def _state_text(end: RunEnd) -> str:
    """`(exit code 1, OOMKilled false): ` and the engine's message, if there is one."""
    text = f"(exit code {end.code or 0}, OOMKilled {str(end.oom_killed).lower()})"
    if end.error:
        text += f": {end.error}"
    return text


def _find_stop_signal(end: RunEnd) -> int | None:
    """The signal that stopped a container: one that was forwarded, or one that its exit code names."""
    if end.signalled is not None:
        return end.signalled
    number = (end.code or 0) - _SIGNALLED
    if number in _STOP_SIGNALS:
        return number
    return None


def _explain_interruption(end: RunEnd, stop_signal: int) -> FlagbenchError:
    """The error for a container that a signal stopped before it left a record."""
    if end.killed_after is not None:
        how = f"; the container did not end within {end.killed_after:.0f} s and was killed"
    elif end.code is None:
        how = ", and the container no longer exists"
    else:
        how = f"; the container left no record {_state_text(end)}"
    reason = f"interrupted by {signal.Signals(stop_signal).name}{how}"
    return FlagbenchError(reason, remedy="run again", code=ExitCode.INTERRUPTED)


def record_of_killed(request: RunRequest, error: FlagbenchError, *, image: RunImage | None = None) -> bytes:
    """A valid record as JSON that states the error by which the run ended, and contains no measurement.

    `image` is that of the container; None for a native run, whose Python is this process's. The Python of a container
    is taken from the stack's manifest, because the container no longer exists.
    """
    now = datetime.now(timezone.utc)
    shape = f"{request.options.nodes}x{request.options.gpus}"
    name = f"{request.case.name}-{request.stack.name}-{shape}-{uuid.uuid4().hex[:8]}"
    system: dict[str, Any] = {"nodes": request.options.nodes, "devices_per_node": request.options.gpus, "devices": []}
    if image is None:
        python = platform.python_version()
        system["host"] = host_name()
    else:
        python = request.stack.python
        system["host"] = image.host or None
        reason = "the run was killed"
        system["image"] = {"context_digest": None, "digest": image.digest, "id": image.id, "reason": reason}
    record: dict[str, Any] = {
        "schema": "record/v1",
        "record_id": f"{now:%Y%m%dT%H%M%SZ}-{name}",
        "run_id": request.options.run_id or new_run_id(),
        "created_at": format_utc(now),
        "flagbench": {"version": __version__, "commit": None},
        "case": request.case.name,
        "stack": request.stack.name,
        "preset": request.options.preset,
        "division": DIVISION,
        "conditions": {},
        "system": system,
        "software": {"python": python, "torch": None},
        "timing": {},
        "metrics": [],
        **dict.fromkeys(_UNKNOWN_SECTIONS),
        "telemetry_reason": "the run was killed",
        "ranks": [],
        "status": {
            "state": "interrupted" if error.code is ExitCode.INTERRUPTED else "failed",
            "phase": "launch",
            "reason": redact(error.message),
            "remedy": redact(error.remedy),
            "exit_code": int(error.code),
        },
    }
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
