"""What `flagbench run` finds wrong before anything starts, and what it says without running anything."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from catalogs import CATALOG
from flagbench.cli import main
from flagbench.errors import FlagbenchError
from flagbench.machine.devices import Machine
from flagbench.machine.vendors import LocalDevice
from flagbench.records.folder_blobs import FolderBlobs
from flagbench.records.store import Store
from flagbench.runs import memory
from flagbench.runs.launchers import LaunchResult, container_environment
from flagbench.runs.launchers import estimate as estimates
from flagbench.runs.launchers.describe import Described, describe
from flagbench.runs.launchers.docker import DockerLauncher
from flagbench.runs.launchers.estimate import estimate
from flagbench.runs.launchers.native import NativeLauncher
from flagbench.runs.request import LocalOptions, RunRequest
from flagbench_core.exit_codes import ExitCode
from unit.host.conftest import Flagbench, MakeRecord

MakeRequest = Callable[..., RunRequest]


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store that is not there yet, and launchers that may not be reached."""

    def launch(self: object, request: object) -> LaunchResult:
        raise AssertionError("it was started")

    monkeypatch.setattr(NativeLauncher, "launch", launch)
    monkeypatch.setattr(DockerLauncher, "launch", launch)
    monkeypatch.setattr("flagbench.runs.launchers.native.find_spec", lambda name: object())
    monkeypatch.setenv("FLAGBENCH_STORE", str(tmp_path / "store"))
    for name in container_environment._RANKS:
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "store"


TOO_MANY = 4 * len(os.sched_getaffinity(0)) + 1
"""Ranks, of which at most four share a processor."""
WRONG = [
    (2, "--gpus", "--gpus 0"),  # refused by Typer
    (2, "--gpus", f"--gpus {TOO_MANY}"),
    (2, "--gpus", f"--gpus {TOO_MANY} --dry-run"),
    (2, "TF32", "--precision tf32"),  # by the request
    (2, "--out", "--out /dev/null"),
    (3, "--data", "--data /nowhere"),
    (3, "--weights", "--weights /dev/null"),
]


@pytest.mark.parametrize(("code", "named", "words"), WRONG)
def test_errors_before_a_run(flagbench: Flagbench, store: Path, code: int, named: str, words: str) -> None:
    ended = flagbench(f"run distilbert:cpu --preset tiny {words}")
    assert (ended.code, ended.out, ended.err.lower().count("error:")) == (code, "", 1)
    assert named in ended.err
    assert not store.exists()


@pytest.mark.parametrize(
    "command",
    [
        "run distilbert:cpu --preset tiny",
        "run distilbert:cpu --preset tiny --repeat 2",
        "accept --case distilbert:cpu",
        "reproduce distilbert/a100-1x8-fp32 --on cpu --yes",
        "verify",
        "report",
        "results show",
    ],
)
def test_an_unusable_price_is_found_before_a_command_begins(
    flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLAGBENCH_PRICE", "1,5")
    ended = flagbench(command)
    assert (ended.code, ended.out) == (ExitCode.USAGE, "")
    assert "FLAGBENCH_PRICE '1,5'" in ended.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("named", "options"),
    [
        ("--resume", LocalOptions(preset="tiny", resume=".")),
        ("--precision", LocalOptions(preset="tiny", precision="fp16")),
    ],
)
def test_what_the_case_does_not_support(make_request: MakeRequest, named: str, options: LocalOptions) -> None:
    with pytest.raises(FlagbenchError) as caught:
        describe(replace(make_request(), options=options), container=False)
    assert caught.value.code is ExitCode.USAGE
    assert named in caught.value.message


def test_a_container_does_not_see_this_machines_data(flagbench: Flagbench) -> None:
    """A dry run of the same request gives one digest both ways."""
    native, docker = (
        flagbench(f"run distilbert:cpu --via {via} --dry-run --json").json for via in ("native", "docker")
    )
    assert (native["via"], docker["via"]) == ("native", "docker")
    assert (native["image"], docker["image"]) == (None, "flagbench/distilbert:cpu")
    assert native["devices"] == {"nodes": 1, "per_node": 1, "kind": "cpu"}
    assert native["config_digest"] == docker["config_digest"]
    assert native["expected_seconds"] is None


def test_how_long_a_run_takes_by_a_published_row(
    make_request: MakeRequest, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = make_request("a100", gpus=8, steps=2000)
    described = describe(request, container=True)
    assert described is not None

    def expected(**changes: Any) -> tuple[float, str] | None:
        train = {**described.config["train"], **changes.pop("train", {})}
        config = {**described.config, **changes, "train": train}
        found = estimate(Described(config, ""), request.stack, Store(FolderBlobs(store)), CATALOG.claims.values())
        return None if found is None else (round(found.seconds), found.basis.split()[0])

    assert expected() == (round(2020 * 32 * 8 / 1942.6), "p_core")
    assert expected(train={"window_steps": None}) == (361, "e2e_time")
    for other in ({"train": {"batch_size": 31}}, {"gpus": 3}, {"precision": "fp32"}):
        assert expected(**other) is None
    monkeypatch.setattr(
        estimates, "this_machine", lambda: Machine((LocalDevice("NVIDIA H100 80GB HBM3", 80.0, "GPU-0"),), 1)
    )
    assert expected() is None


def test_a_dry_run_says_what_would_keep_the_run_from_starting(
    flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")  # no engine, whatever there is on this machine
    ended = flagbench("run distilbert:a100 --gpus 8 --via docker --dry-run --json")
    assert (ended.code, "engine" in ended.json["problem"]) == (0, True)
    assert flagbench("run distilbert:cpu --via native --dry-run --json").json["problem"] is None


def test_a_dry_run_for_a_person(flagbench: Flagbench, store: Path) -> None:
    code, out, err = flagbench("run distilbert:a100 --gpus 8 --dry-run")
    rows = dict(line.split(None, 1) for line in out.splitlines())
    assert rows["image"] == "flagbench/distilbert:a100-cuda11.6"
    assert rows["command"].startswith("docker run ")
    assert rows["configuration"].startswith("sha256:")
    assert rows["takes"].startswith("about ")
    assert (code, err, store.exists()) == (0, "", False)


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """`devices(gib)`: this machine has two devices, the second with so much memory."""

    def have(gib: float) -> None:
        found = (LocalDevice("NVIDIA H100 80GB HBM3", 79.6, "GPU-0"), LocalDevice("another", gib, "GPU-1"))
        monkeypatch.setattr(memory, "this_machine", lambda: Machine(found, 2))

    return have


@pytest.mark.parametrize(
    ("gib", "words", "warned"),
    [
        (24.0, "", True),
        (79.6, "", False),
        (24.0, "--set micro_batch_size=1", False),  # of which nothing was measured
    ],
)
def test_a_device_with_too_little_memory_is_warned_of(
    flagbench: Flagbench, devices: Callable[[float], None], gib: float, words: str, warned: bool
) -> None:
    devices(gib)
    ended = flagbench(f"run llama3.1-8b-lora:cuda13 --via docker --dry-run --json {words}")
    assert (ended.code, ended.err.count("warning: ")) == (0, int(warned))
    assert ended.err.count("73.3 GiB") == int(warned)
    if not words:
        facts = ended.json["memory"]
        assert (facts["measured_gib"], facts["device_gib"]) == (73.3, gib)
        assert facts["source"] == "docs/measured/h100-llama3.1-8b-lora.json"


def test_a_run_is_tried_in_less_memory(
    flagbench: Flagbench, devices: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    devices(24.0)
    monkeypatch.setattr(DockerLauncher, "launch", lambda self, request: LaunchResult(b"", 5))
    ended = flagbench("run llama3.1-8b-lora:cuda13 --via docker")
    assert (ended.code, ended.err.count("warning: ")) == (ExitCode.OUT_OF_MEMORY, 1)


def test_the_published_size_on_a_processor_is_confirmed(
    flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch, store: Path
) -> None:
    refused = flagbench("run distilbert:cpu")
    assert (refused.code, "--yes" in refused.err) == (2, True)
    monkeypatch.setattr(NativeLauncher, "launch", lambda self, request: LaunchResult(b"", 6))
    assert flagbench("run distilbert:cpu --yes").code == 6
    assert flagbench("run distilbert:cpu --preset tiny").code == 6
    assert not store.exists()


@pytest.mark.parametrize("phase", ["usage", "launch"])
def test_a_request_that_an_image_refuses_is_not_kept(
    flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch, store: Path, phase: str
) -> None:
    """An image of another version may know other options. Of one that prints nothing, the launcher makes a record."""
    record = json.dumps({"schema": "record/v1", "status": {"phase": phase, "exit_code": 2}}).encode()
    monkeypatch.setattr(DockerLauncher, "launch", lambda self, request: LaunchResult(record, 2))
    assert flagbench("run distilbert:cpu --via docker --preset tiny").code == 2
    assert not store.exists()


def test_a_run_on_the_wrong_hardware_is_not_kept_and_is_not_last(
    flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch, store: Path, make_record: MakeRecord
) -> None:
    status = {"state": "failed", "phase": "preflight", "reason": "no device", "remedy": None, "exit_code": 13}
    wrong = make_record(record_id="of-wrong-hardware", created_at="2026-01-02T00:00:00Z", status=status)
    monkeypatch.setattr(DockerLauncher, "launch", lambda self, request: LaunchResult(wrong, 13))
    assert flagbench("run distilbert:cpu --via docker --preset tiny").code == ExitCode.WRONG_HARDWARE
    assert not [*Store(FolderBlobs(store)).list_records()]
    Store(FolderBlobs(store)).put(make_record(record_id="of-a-good-run"))
    Store(FolderBlobs(store)).put(wrong)  # as a container did that stores its records itself
    assert flagbench("results show --json last").json["record_id"] == "of-a-good-run"


@pytest.mark.parametrize("address", ["link/store", "taken", "/proc/store", "x" * 300])
def test_a_store_that_takes_no_record_costs_no_run(tmp_path: Path, address: str) -> None:
    (tmp_path / "link").symlink_to("nothing")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "results").touch()
    assert main.run(["run", "distilbert:cpu", "--preset", "tiny", "--store", str(tmp_path / address)]) == 2


def test_the_command_that_is_shown_makes_nothing(flagbench: Flagbench, tmp_path: Path) -> None:
    command = f"run distilbert:a100 --via docker --gpus 8 --run-id mine --out {tmp_path}/out --dry-run --json"
    words = shlex.split(flagbench(command).json["command"])
    assert words[:5] == ["docker", "run", "--rm", "--pull=never", "--label=dev.flagbench.run=mine"]
    assert {"--gpus=all", f"--mount=type=bind,source={tmp_path / 'out'},target=/out"} <= {*words}
    assert words[words.index("flagbench/distilbert:a100-cuda11.6") + 1 :][:2] == ["--nodes=1", "--gpus=8"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["--image x", "--memory 1g", "--keep-container"])
def test_options_of_a_container(flagbench: Flagbench, option: str) -> None:
    shown = flagbench(f"run distilbert:cpu --dry-run --json {option}")
    assert shown.json["command"].split()[0] == "docker"
    refused = flagbench(f"run distilbert:cpu --via native {option}")
    assert (refused.code, option.split()[0] in refused.err) == (2, True)
