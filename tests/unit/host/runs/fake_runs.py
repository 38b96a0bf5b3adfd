"""A launcher that ends runs as it is told, on a machine with a clock of its own."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from typing import Any

from flagbench.errors import FlagbenchError
from flagbench.runs.launchers import LaunchResult
from flagbench.runs.request import RunRequest
from flagbench_core.config import digest as config_digest
from flagbench_core.exit_codes import ExitCode
from make_replays import replayed

TAKES = 400.0
"""Seconds of a run by the launcher's clock."""
ENDINGS = {
    "ok": ("ok", 0),
    "signalled": ("ok", 0),
    "failed": ("failed", 5),
    "interrupted": ("interrupted", 7),
}


@cache
def measured(number: int) -> dict[str, Any]:
    """The record of a run with step times of its own."""
    return replayed("cpu-tiny", seed=number)


@dataclass
class FakeRuns:
    """A launcher that ends each run as it is told, on a machine with a clock of its own."""

    endings: list[str] = field(default_factory=list)
    requests: list[RunRequest] = field(default_factory=list)
    seconds: float = 0.0

    def now(self) -> str:
        at = datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=self.seconds)
        return f"{at:%Y-%m-%dT%H:%M:%SZ}"

    def launch(self, launcher: object, request: RunRequest) -> LaunchResult:
        """Stands for `Launcher.launch`."""
        ending = self.endings[len(self.requests)] if len(self.requests) < len(self.endings) else "ok"
        self.requests.append(request)
        self.seconds += TAKES
        if ending == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if ending == "not started":
            raise FlagbenchError("no engine", remedy="start it", code=ExitCode.ENGINE)
        state, code = ENDINGS.get(ending, ("failed", 2))
        status = {"state": state, "phase": "usage" if ending == "refused" else "done", "reason": None}
        return LaunchResult(self.record(request, {**status, "exit_code": code}), code, ending == "signalled")

    def record(self, request: RunRequest, status: dict[str, Any]) -> bytes:
        """What the image prints."""
        made = measured(len(self.requests))
        config = {**made["config"], "seed": request.options.seed}
        record = {
            **made,
            "record_id": f"record-of-{request.options.run_id}",
            "run_id": request.options.run_id,
            "created_at": self.now(),
            "config": config,
            "config_digest": config_digest(config),
            "conditions": {**made["conditions"], "seed": request.options.seed},
            "status": status,
        }
        content = json.dumps(record).encode() + b"\n"
        if request.options.out is not None:
            Path(request.options.out).mkdir(exist_ok=True)
            (Path(request.options.out) / f"{record['record_id']}.json").write_bytes(content)
        return content
