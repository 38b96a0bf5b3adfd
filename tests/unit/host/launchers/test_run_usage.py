"""What `flagbench run` finds wrong before anything starts: told once, in the words of its own options, never kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flagbench.cli import main
from flagbench.launchers import LaunchResult, container
from flagbench.launchers.docker import DockerLauncher
from flagbench.launchers.native import NativeLauncher

NOT_A_FOLDER = "/dev/null"
Flagbench = Callable[..., Any]


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store, and launchers that may not be reached."""

    def launch(self: object, request: object) -> LaunchResult:
        raise AssertionError("it was started")

    monkeypatch.setattr(NativeLauncher, "launch", launch)
    monkeypatch.setattr(DockerLauncher, "launch", launch)
    monkeypatch.setenv("FLAGBENCH_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    for name in container._RANKS:
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "store"


WRONG = [
    (2, "--gpus", ["--gpus", "0"]),
    (2, "--gpus", ["--gpus", "x"]),
    (2, "--gpus", ["--gpus", "9999999999999"]),
    (2, "--preset", ["--preset", "huge"]),
    (2, "--precision", ["--precision", "int8"]),
    (2, "TF32", ["--precision", "tf32"]),
    (2, "tuned", ["--division", "tuned"]),
    (2, "nosuch", ["--set", "nosuch=1"]),
    (2, "batch_size", ["--set", "batch_size=x"]),
    (2, "batch_size", ["--set", "batch_size=0"]),
    (2, "batch_size", ["--set", "batch_size"]),
    (2, "--full", ["--steps", "3", "--full"]),
    (2, "--timeout", ["--timeout", "-1"]),
    (2, "--max-minutes", ["--max-minutes", "nan"]),
    (2, "--seed", ["--seed", "99999999999"]),
    (2, "--run-id", ["--run-id", ".."]),
    (2, "--node-rank", ["--nodes", "2"]),
    (2, "--node-rank", ["--node-rank", "3"]),
    (2, "--master", ["--nodes", "2", "--node-rank", "0", "--master", "no port:x"]),
    (2, "resume", ["--resume", "/"]),
    (2, "--data", ["--data", "s3://bucket/x"]),
    (2, "--out", ["--out", NOT_A_FOLDER]),
    (3, "--data", ["--data", "/nowhere"]),
    (3, "--weights", ["--weights", NOT_A_FOLDER]),
]


@pytest.mark.parametrize("via", ["native", "docker"])
@pytest.mark.parametrize(("code", "named", "words"), WRONG, ids=[" ".join(words) for _, _, words in WRONG])
def test_it_is_told_once_and_not_kept(
    capfd: pytest.CaptureFixture[str], store: Path, via: str, code: int, named: str, words: list[str]
) -> None:
    assert main.run(["run", "distilbert:cpu", "--preset", "tiny", "--via", via, *words]) == code
    out, err = capfd.readouterr()
    assert (out, err.lower().count("error:")) == ("", 1)
    assert named in err
    assert "flagbench_cases" not in err
    assert not store.exists()


def test_a_data_folder_that_the_container_would_not_see_is_not_looked_at(
    flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--dry-run of the same request gives one digest both ways."""
    monkeypatch.setattr("flagbench.launchers.native.find_spec", lambda name: object())
    native, docker = (
        flagbench(f"run distilbert:cpu --via {via} --dry-run --json").json for via in ("native", "docker")
    )
    assert (native["via"], docker["via"]) == ("native", "docker")
    assert (native["image"], docker["image"]) == (None, "flagbench/distilbert:cpu")
    assert (native["expected_seconds"], native["expected_basis"]) == (None, None)
    assert native["devices"] == {"nodes": 1, "per_node": 1, "kind": "cpu"}
    assert native["config_digest"].startswith("sha256:")
    assert native["config_digest"] == docker["config_digest"]


@pytest.mark.parametrize(
    ("words", "metric", "seconds"),
    [
        ("--steps 2000", "p_core", 2020 * 32 * 8 / 1942.6),
        ("--full", "e2e_time", 361.0),
        ("--set batch_size=31", None, None),
        ("--gpus 3", None, None),
        ("--precision fp32", None, None),
    ],
)
def test_how_long_by_the_published_row(
    flagbench: Flagbench, words: str, metric: str | None, seconds: float | None
) -> None:
    shown = flagbench(f"run distilbert:a100 --gpus 8 {words} --dry-run --json").json
    assert shown["command"].startswith("docker run ")
    assert shown["expected_seconds"] == (None if seconds is None else pytest.approx(seconds))
    if metric is not None:
        assert shown["expected_basis"].startswith(f"{metric} of the published row distilbert/a100-1x8-fp32")


def test_a_dry_run_for_a_person_starts_nothing(flagbench: Flagbench, store: Path) -> None:
    code, out, err = flagbench("run distilbert:a100 --gpus 8 --dry-run")
    rows = dict(line.split(None, 1) for line in out.splitlines())
    assert rows["image"] == "flagbench/distilbert:a100-cuda11.6"
    assert rows["configuration"].startswith("sha256:")
    assert rows["takes"].startswith("about ")
    assert (code, err, store.exists()) == (0, "", False)


def test_the_published_size_on_a_processor_is_confirmed(
    flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch, store: Path
) -> None:
    monkeypatch.setattr("flagbench.launchers.native.find_spec", lambda name: object())
    refused = flagbench("run distilbert:cpu")
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert flagbench("run distilbert:cpu --dry-run").code == 0
    monkeypatch.setattr(NativeLauncher, "launch", lambda self, request: LaunchResult(b"", 6))
    assert flagbench("run distilbert:cpu --yes").code == 6
    assert flagbench("run distilbert:cpu --preset tiny").code == 6
    assert not store.exists()


def test_a_request_that_an_image_refuses_is_not_kept(monkeypatch: pytest.MonkeyPatch, store: Path) -> None:
    """An image of another version may know other options."""
    record = json.dumps({"schema": "record/v1", "status": {"phase": "usage", "exit_code": 2}}).encode()
    monkeypatch.setattr(DockerLauncher, "launch", lambda self, request: LaunchResult(record, 2))
    assert main.run(["run", "distilbert:cpu", "--via", "docker", "--preset", "tiny"]) == 2
    assert not store.exists()


@pytest.mark.parametrize(("words", "code"), [(["nosuch"], 2), (["bash", "zsh"], 2), (["bash"], 0), (["fish"], 0)])
@pytest.mark.parametrize("option", ["--install-completion", "--show-completion"])
def test_completion_is_of_a_shell_that_there_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: str, words: list[str], code: int
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert main.run([option, *words]) == code
    assert bool(list(tmp_path.glob("home/**/*flagbench*"))) == (code == 0 and option == "--install-completion")


@pytest.mark.parametrize(("shell", "file"), [("bash", ".bashrc"), ("zsh", ".zshrc")])
def test_a_start_up_file_that_is_not_utf_8_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shell: str, file: str
) -> None:
    (tmp_path / file).write_bytes(b"# caf\xe9\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main.run(["--install-completion", shell]) == 2
    assert (tmp_path / file).read_bytes() == b"# caf\xe9\n"


def test_a_dry_run_is_json_in_every_encoding(tmp_path: Path) -> None:
    out = tmp_path / "caf\u00e9"
    command = [sys.executable, "-m", "flagbench", "run", "distilbert:cpu", "--preset", "tiny", "--dry-run", "--json"]
    environment = dict(os.environ, PYTHONIOENCODING="koi8-r")
    options = ["--via", "docker", "--out", str(out)]
    done = subprocess.run([*command, *options], env=environment, capture_output=True, check=True)
    assert str(out) in json.loads(done.stdout)["command"]


@pytest.mark.parametrize("address", ["link", "link/store", "taken", "taken-inside", "/proc/store"])
def test_a_store_that_would_take_no_record_is_found_before_the_run(tmp_path: Path, address: str) -> None:
    (tmp_path / "link").symlink_to("nothing")
    for taken in ("taken/results", "taken-inside/results/v1"):
        (tmp_path / taken).parent.mkdir(parents=True)
        (tmp_path / taken).touch()
    before = sorted(tmp_path.rglob("*"))
    assert main.run(["run", "distilbert:cpu", "--preset", "tiny", "--store", str(tmp_path / address)]) == 2
    assert sorted(tmp_path.rglob("*")) == before
