"""An honest certificate verifies, however it was made: `accept` and `bundle verify` on recorded runs."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from flagbench.accept.plan import Clock
from flagbench.errors import FlagbenchError
from flagbench.records.store import Store
from flagbench.runs.launchers import LaunchResult
from flagbench.runs.launchers.docker import DockerLauncher
from flagbench.runs.launchers.native import NativeLauncher
from flagbench.runs.request import RunRequest
from flagbench_core.exit_codes import ExitCode
from make_replays import replayed
from unit.host.conftest import Flagbench
from unit.host.verdict.conftest import MEASURED, ROWS

Raw = dict[str, Any]
RECORDED = {
    ("roofs", "cpu"): ROWS / "run-roofs-2.json",
    ("roofs", "cuda13"): MEASURED / "h100-roofs.json",
    ("llama3.1-8b-lora", "cuda13"): MEASURED / "h100-llama3.1-8b-lora.json",
}
BITS = {"name": "matmul_fp32", "digests": {"00": [0, 1]}, "changed": [], "apart": []}
ONE_H100 = """#!/bin/sh
case "$*" in
*memory.total*) echo "NVIDIA H100 80GB HBM3, 81559 MiB, GPU-0";;
*driver_version*) echo "GPU-0, 580.95.05, Enabled, 700.00, 700.00";;
esac
"""
TOOK = 7.2468
"""Seconds of an acceptance by its clock. Rounded to a tenth, they are others."""


@dataclass
class RecordedRuns:
    """A launcher whose runs leave recorded ones, each with an identity of its own, and a clock that they advance."""

    change: Callable[[Raw], Any] = lambda raw: None
    """Changes what a run left."""
    endings: list[str] = field(default_factory=list)
    """How each run ends; `ok` where it is not said."""
    count: int = 0
    elapsed: float = 0.0
    """Seconds that the runs so far took."""

    def now(self) -> str:
        """Stands for `utc_now`."""
        return f"{datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=self.elapsed):%Y-%m-%dT%H:%M:%SZ}"

    def launch(self, request: RunRequest) -> LaunchResult:
        """Stands for `Launcher.launch`."""
        ending = self.endings[self.count] if self.count < len(self.endings) else "ok"
        self.count += 1
        if ending == "not started":
            raise FlagbenchError("no engine", remedy="start it", code=ExitCode.ENGINE)
        if ending == "no record":
            return LaunchResult(b"", ExitCode.RANK_FAILED)
        raw = self.recorded(request)
        self.change(raw)
        if ending == "interrupted":
            raw["status"].update(state="interrupted", exit_code=7, reason="SIGINT")
            return LaunchResult(json.dumps(raw).encode(), ExitCode.INTERRUPTED, signalled=True)
        return LaunchResult(json.dumps(raw).encode(), ExitCode.OK)

    def recorded(self, request: RunRequest) -> Raw:
        """The record of this run."""
        raw: Raw
        if request.case.name == "distilbert":
            raw = replayed("cpu-tiny", seed=self.count)
        else:
            raw = json.loads(RECORDED[request.case.name, request.stack.name].read_text(encoding="utf-8"))
        if request.stack.name == "cpu" and request.case.name == "roofs":
            raw["results"] = [copy.deepcopy(BITS)]
            raw["telemetry"]["cpu"].update(others_mean=0.0, steal_mean=0.0)
        self.elapsed += raw["timing"]["e2e"] + 1
        raw.update(run_id=f"run-{self.count}", record_id=f"record-of-run-{self.count}", created_at=self.now())
        return raw


@pytest.fixture
def runs(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RecordedRuns:
    """What `accept` runs in this process, within TOOK seconds of its clock."""
    recorded = RecordedRuns()
    for launcher in (NativeLauncher, DockerLauncher):
        monkeypatch.setattr(launcher, "launch", lambda self, request: recorded.launch(request))
        monkeypatch.setattr(launcher, "check", lambda self, request: None)
    monkeypatch.setattr("flagbench.runs.launchers.launch_time.utc_now", recorded.now)
    monkeypatch.setattr("flagbench.runs.launchers.launch_time.elapsed", lambda: recorded.elapsed)
    monkeypatch.setattr(Clock, "seconds", TOOK)
    return recorded


@pytest.fixture
def h100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with an H100, as its vendor's tool says."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(ONE_H100, encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")


@pytest.fixture
def accept(flagbench: Flagbench, runs: RecordedRuns, tmp_path: Path) -> Callable[[str], Raw]:
    """`accept(options)`: the certificate of an acceptance, whose bundle verifies as it is."""

    def made(options: str) -> Raw:
        bundle = tmp_path / f"accept-{runs.count}.tar.gz"
        ended = flagbench(f"accept {options} --json --out {bundle}")
        certificate: Raw = json.loads(ended.out)
        verified = flagbench(f"bundle verify {bundle} --json")
        assert (verified.code, verified.err) == (ExitCode.OK, "")
        assert json.loads(verified.out)["certificate"] == certificate
        return certificate

    return made


CPU = "--case distilbert:cpu --gpus 2 --via docker"


@pytest.mark.parametrize("price", ["24", "0.37", "1e6"])
def test_with_a_price(accept: Callable[[str], Raw], price: str) -> None:
    certificate = accept(f"{CPU} --price {price}")
    assert certificate["outcome"] == "PASS"
    assert certificate["cost"] == round(float(price) * certificate["seconds"] / 3600, 4)


def test_in_containers(accept: Callable[[str], Raw]) -> None:
    assert accept(CPU)["outcome"] == "PASS"


@pytest.mark.skipif(find_spec("torch") is None, reason="a native run imports it")
def test_natively(accept: Callable[[str], Raw]) -> None:
    assert accept(CPU.replace("docker", "native"))["outcome"] == "PASS"


def test_with_junit(accept: Callable[[str], Raw], tmp_path: Path) -> None:
    accept(f"{CPU} --junit {tmp_path / 'checks.xml'}")
    assert (tmp_path / "checks.xml").is_file()


@pytest.mark.usefixtures("h100")
def test_without_a_case(accept: Callable[[str], Raw]) -> None:
    certificate = accept("--gpus 1 --via docker --minutes 1 --price 2.5")
    assert (certificate["outcome"], len(certificate["facts"]["parts"])) == ("INCONCLUSIVE", 1)
    assert certificate["facts"]["without_case"]


@pytest.mark.usefixtures("h100")
def test_of_an_accelerator_with_published_rows(accept: Callable[[str], Raw]) -> None:
    certificate = accept("--case llama3.1-8b-lora --gpus 1 --via docker --minutes 30 --price 2.5")
    assert certificate["efficiency"][0]["price_per_million"] > 0
    assert any("automodel" in check["against"] for check in certificate["checks"])


def test_beside_earlier_runs(accept: Callable[[str], Raw]) -> None:
    accept(CPU)
    certificate = accept(CPU)
    assert [len(part["history"]) for part in certificate["facts"]["parts"]] == [1, 1]


def test_where_a_check_fails(accept: Callable[[str], Raw], runs: RecordedRuns) -> None:
    runs.change = lambda raw: raw["results"][0].update(changed=[1])
    certificate = accept(f"{CPU} --price 24")
    assert (certificate["outcome"], certificate["action"]["ranks"]) == ("FAIL", [1])


@pytest.mark.usefixtures("h100")
def test_where_a_device_is_missing(accept: Callable[[str], Raw], runs: RecordedRuns) -> None:
    assert accept("--case distilbert --gpus 8 --via docker --price 24")["outcome"] == "FAIL"
    assert runs.count == 0


@pytest.mark.parametrize("ending", ["interrupted", "not started", "no record"])
def test_where_a_run_does_not_end(accept: Callable[[str], Raw], runs: RecordedRuns, ending: str) -> None:
    runs.endings = ["ok", ending]
    certificate = accept(f"{CPU} --price 24")
    assert certificate["outcome"] == "INCONCLUSIVE"
    assert (certificate["reason"] == "interrupted") is (ending == "interrupted")


def test_where_the_first_run_is_interrupted(accept: Callable[[str], Raw], runs: RecordedRuns) -> None:
    runs.endings = ["interrupted"]
    assert accept(f"{CPU} --price 24")["reason"] == "interrupted"
