"""The record of a run whose own process was killed before it could print one."""

from __future__ import annotations

import json
import platform
import uuid
from datetime import datetime, timezone
from typing import Any

from flagbench._version import __version__
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.redaction import redact
from flagbench.request import RunRequest


def record_of_killed(request: RunRequest, error: FlagbenchError, *, image_digest: str | None = None) -> bytes:
    """A valid `record/v1` that says by which error the run ended and contains no measurement.

    `image_digest` is that of the image whose container it was; None for a run without one. Then the Python is this
    process's own, else the one that the stack's manifest says, because the container can no longer be asked.
    """
    now = datetime.now(timezone.utc)
    shape = f"{request.options.nodes}x{request.options.gpus}"
    name = f"{request.case.name}-{request.stack.name}-{shape}-{uuid.uuid4().hex[:8]}"
    system: dict[str, Any] = {"nodes": request.options.nodes, "devices_per_node": request.options.gpus, "devices": []}
    python = platform.python_version()
    if image_digest is not None:
        system["image"] = {"context_digest": None, "digest": image_digest, "reason": "the run was killed"}
        python = request.stack.python
    record: dict[str, Any] = {
        "schema": "record/v1",
        "record_id": f"{now:%Y%m%dT%H%M%SZ}-{name}",
        "run_id": request.options.run_id or f"run-{uuid.uuid4().hex[:12]}",
        "created_at": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "flagbench": {"version": __version__, "commit": None},
        "case": request.case.name,
        "stack": request.stack.name,
        "preset": request.options.preset,
        "division": request.options.division,
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
