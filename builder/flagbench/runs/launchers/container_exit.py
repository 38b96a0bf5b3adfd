"""How a run's process or container ended: exit code, reason, remedy, and the record of one that left none."""

from __future__ import annotations

import json
import platform
import signal
import uuid
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from flagbench.errors import FlagbenchError
from flagbench.runs.request import RunRequest, new_run_id
from flagbench_core import DIVISION, __version__
from flagbench_core.exit_codes import ExitCode
from flagbench_core.redaction import redact

# Signals by which users and schedulers stop a process.
_STOP_SIGNALS = {
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU),
}
_SIGNALLED = 128
"""Added to the number of a signal in the exit code of the process that it killed."""
_OURS = frozenset(ExitCode) - {ExitCode.OK, ExitCode.BUG}


@dataclass(frozen=True)
class RunImage:
    """The image of a container, as the record names it."""

    digest: str
    """`REPOSITORY@sha256:...` of its manifest, where it was pulled or pushed; else its id."""
    id: str | None
    """`sha256:<64 hex>` of its configuration; None where the engine does not say (containerd image store)."""
    host: str = ""
    """The name of the engine's machine, which may be another one than this."""

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which the code in the image knows its image and its host."""
        variables = {"FLAGBENCH_IMAGE_DIGEST": self.digest, "FLAGBENCH_HOST": self.host}
        if self.id is not None:
            variables["FLAGBENCH_IMAGE_ID"] = self.id
        return variables


@dataclass(frozen=True)
class Ended:
    """Output and end of a process or a container."""

    printed: bytes
    code: int | None
    """Exit code; None for a container that no longer exists, -N for a process that signal N ended."""
    signalled: int | None
    """The first signal that was forwarded."""
    overdue: float | None
    """Seconds from the first signal until it was killed; None if it was not."""
    oom_killed: bool = False
    error: str = ""
    """The engine's message, on one line."""


def record_in(stdout: bytes) -> bytes:
    """The last line that is a record, with its newline; empty if no line is."""
    for line in reversed(stdout.splitlines()):
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict) and str(document.get("schema", "")).startswith("record/"):
            return line + b"\n"
    return b""


def exit_code(record: bytes, ended_with: int | None) -> int:
    """The code of a run that left a record: its container's or process's where it is one of ours, else the record's.

    A record of success is trusted only if the container no longer exists (None); and a container's exit code 0 does
    not turn a record of failure into success.
    """
    try:
        status = json.loads(record)["status"]
        recorded = int(status["exit_code"])
        ended_well = status.get("state", "ok") == "ok"
    except (ValueError, KeyError, TypeError, AttributeError):
        recorded = int(ExitCode.RANK_FAILED)
        ended_well = False
    if ended_with is not None and ended_with in set(ExitCode) - {ExitCode.OK}:
        return int(ended_with)
    if ended_well and recorded == ExitCode.OK and ended_with in (ExitCode.OK, None):
        return int(ExitCode.OK)
    if recorded in _OURS:
        return recorded
    return int(ExitCode.RANK_FAILED)


def explain(ended: Ended) -> FlagbenchError:
    """Why a container left no record."""
    code, signalled, error = ended.code or 0, ended.signalled, ended.error
    words = f"(exit code {code}, OOMKilled {str(ended.oom_killed).lower()})"
    if error:
        words += f": {error}"
    if ended.oom_killed and ended.overdue is None:
        remedy = "give it more memory (--memory), or a smaller batch with --set batch_size=N"
        return FlagbenchError(
            f"the container was killed for memory {words}", remedy=remedy, code=ExitCode.OUT_OF_MEMORY
        )
    if signalled is None and code - _SIGNALLED in _STOP_SIGNALS:
        signalled = code - _SIGNALLED
    if signalled is not None:
        if ended.overdue is not None:
            how = f"; the container did not end within {ended.overdue:.0f} s and was killed"
        elif ended.code is None:
            how = ", and the container no longer exists"
        else:
            how = f"; the container left no record {words}"
        reason = f"interrupted by {signal.Signals(signalled).name}{how}"
        return FlagbenchError(reason, remedy="run again", code=ExitCode.INTERRUPTED)
    if ended.code is None:
        reason, remedy = "the container was removed while it ran", "run again"
    elif code == _SIGNALLED + signal.SIGKILL:
        reason = f"the container was killed {words}"
        remedy = "by `docker kill`, or because the machine was out of memory: see the kernel log"
    else:
        reason, remedy = f"the container ended without a record {words}", "see its messages above"
    ours = ExitCode(code) if code in _OURS else ExitCode.RANK_FAILED
    return FlagbenchError(reason, remedy=remedy, code=ours)


def record_of_killed(request: RunRequest, error: FlagbenchError, *, image: RunImage | None = None) -> bytes:
    """A valid `record/v1` that says by which error the run ended and contains no measurement.

    `image` is that of the container; None for a run without one. Then the Python is this process's own, else the one
    that the stack's manifest says, because the container can no longer be asked.
    """
    now = datetime.now(timezone.utc)
    shape = f"{request.options.nodes}x{request.options.gpus}"
    name = f"{request.case.name}-{request.stack.name}-{shape}-{uuid.uuid4().hex[:8]}"
    system: dict[str, Any] = {"nodes": request.options.nodes, "devices_per_node": request.options.gpus, "devices": []}
    system["host"] = platform.node() if image is None else image.host or None
    python = platform.python_version()
    if image is not None:
        reason = "the run was killed"
        system["image"] = {"context_digest": None, "digest": image.digest, "id": image.id, "reason": reason}
        python = request.stack.python
    record: dict[str, Any] = {
        "schema": "record/v1",
        "record_id": f"{now:%Y%m%dT%H%M%SZ}-{name}",
        "run_id": request.options.run_id or new_run_id(),
        "created_at": f"{now:%Y-%m-%dT%H:%M:%SZ}",
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
        **dict.fromkeys(("config", "config_digest", "window", "flops", "work", "quality", "telemetry")),
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
