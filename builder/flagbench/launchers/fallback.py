"""The record of a run whose own process was killed before it could print one."""

from __future__ import annotations

import json
import platform
import uuid
from datetime import datetime, timezone
from typing import Any

from flagbench._version import __version__
from flagbench.errors import ExitCode
from flagbench.launchers.base import RunRequest


def record_of_killed(request: RunRequest, reason: str, remedy: str, code: ExitCode) -> bytes:
    """A valid `record/v1` that says how the run ended and claims to have measured nothing."""
    now = datetime.now(timezone.utc)
    shape = f"{request.nodes}x{request.gpus}"
    name = f"{request.case.name}-{request.stack.name}-{shape}-{uuid.uuid4().hex[:8]}"
    record: dict[str, Any] = {
        "schema": "record/v1",
        "record_id": f"{now:%Y%m%dT%H%M%SZ}-{name}",
        "run_id": request.run_id or f"run-{uuid.uuid4().hex[:12]}",
        "created_at": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "flagbench": {"version": __version__, "commit": None},
        "case": request.case.name,
        "stack": request.stack.name,
        "preset": request.preset or "reference",
        "division": request.division or "faithful",
        "config": None,
        "config_digest": None,
        "conditions": {},
        "system": {"nodes": request.nodes, "devices_per_node": request.gpus, "devices": []},
        "software": {"python": platform.python_version(), "torch": None},
        "timing": {},
        "metrics": [],
        "window": None,
        "flops": None,
        "work": None,
        "quality": None,
        "telemetry": None,
        "telemetry_reason": "the run was killed",
        "ranks": [],
        "status": {
            "state": "interrupted" if code is ExitCode.INTERRUPTED else "failed",
            "phase": "launch",
            "reason": reason,
            "remedy": remedy,
            "exit_code": int(code),
        },
    }
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
