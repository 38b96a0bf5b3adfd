"""How `flagbench run` chooses between a container and this Python, and what it prints without running."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from flagbench.cli import main


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main.run(["run", *arguments, "--show-command"]) == 0
    return shlex.split(capsys.readouterr().out)


def test_the_line_that_is_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    words = shown(capsys, "distilbert:a100", "--gpus", "8", "--run-id", "mine")
    assert words[:5] == ["docker", "run", "--rm", "--pull=never", "--label=dev.flagbench.run=mine"]
    assert "--gpus=all" in words
    assert words[words.index("flagbench/distilbert:a100-cuda11.6") + 1 :][:2] == ["--nodes=1", "--gpus=8"]


def test_what_is_shown_makes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = shown(capsys, "distilbert:a100", "--out", str(tmp_path / "out"))
    assert f"--mount=type=bind,source={tmp_path / 'out'},target=/out" in words
    assert not (tmp_path / "out").exists()


def test_when_a_container_is_the_default(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    assert shown(capsys, "distilbert:cpu", "--memory", "2g")[0] == "docker"
    assert main.run(["run", "distilbert:a100"]) == 15
    assert main.run(["run", "distilbert:cpu", "--keep-container", "--yes"]) == 15
    assert "/nowhere" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--image", "x"], ["--memory", "1g"], ["--keep-container"], ["--show-command"]])
def test_native_has_no_container_to_choose_for(capsys: pytest.CaptureFixture[str], option: list[str]) -> None:
    assert main.run(["run", "distilbert:cpu", "--via", "native", *option]) == 2
    assert option[0] in capsys.readouterr().err
