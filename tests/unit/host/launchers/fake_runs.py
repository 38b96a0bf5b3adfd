"""A launcher that starts nothing, on a machine with a clock of its own: for tests of several runs."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.launchers import LaunchResult
from flagbench.launchers.docker import DockerLauncher
from flagbench.launchers.native import NativeLauncher
from flagbench.request import RunRequest
from flagbench.stores import Store
from flagbench.verify.sanity import config_digest

from ..conftest import REPLAY

TAKES = 400.0
"""Seconds of a run by the launcher's clock."""
RUN_RECORD = {**json.loads(REPLAY.read_bytes()), "stack": "cpu"}
ENDINGS = {
    "ok": ("ok", 0),
    "signalled": ("ok", 0),
    "failed": ("failed", 5),
    "interrupted": ("interrupted", 7),
}


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
        config = {**RUN_RECORD["config"], "seed": request.options.seed}
        record = {
            **RUN_RECORD,
            "record_id": f"record-of-{request.options.run_id}",
            "run_id": request.options.run_id,
            "created_at": self.now(),
            "config": config,
            "config_digest": config_digest(config),
            "conditions": {**RUN_RECORD["conditions"], "seed": request.options.seed},
            "status": status,
        }
        content = json.dumps(record).encode() + b"\n"
        if request.options.out is not None:
            Path(request.options.out).mkdir(exist_ok=True)
            (Path(request.options.out) / f"{record['record_id']}.json").write_bytes(content)
        return content


@pytest.fixture
def fake(store: Store, monkeypatch: pytest.MonkeyPatch) -> FakeRuns:
    """Replaces what starts runs, and the clock."""
    runs = FakeRuns()
    for kind in (NativeLauncher, DockerLauncher):
        monkeypatch.setattr(kind, "launch", lambda self, request: runs.launch(self, request))
    monkeypatch.setattr(NativeLauncher, "command", lambda self, request: "")
    monkeypatch.setattr("flagbench.cli.run.describe", lambda request, container: None)
    for module in ("launchers.clock", "cli.run_series", "cli.run_turns"):
        monkeypatch.setattr(f"flagbench.{module}.utc_now", runs.now)
    for module in ("launchers.clock", "cli.run_turns"):
        monkeypatch.setattr(f"flagbench.{module}.time", SimpleNamespace(monotonic=lambda: runs.seconds))
    return runs
