"""A run's folders are looked at before anything starts, and its arguments say where the container sees them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flagbench.errors import FlagbenchError
from flagbench.runs.launchers.folders import Folder, mount_folders, output_folder
from flagbench.runs.request import LocalOptions
from flagbench_core.exit_codes import ExitCode


def test_paths_become_those_of_the_container(tmp_path: Path) -> None:
    for name in ("d", "w"):
        (tmp_path / name).mkdir()
    options = LocalOptions(data=str(tmp_path / "d"), weights=str(tmp_path / "w"), out=str(tmp_path / "o" / "deep"))
    inside, folders = mount_folders(options)
    assert (inside.data, inside.weights, inside.out) == ("/data", "/weights", "/out")
    assert folders == (
        Folder(str(tmp_path / "d"), "/data", writable=False),
        Folder(str(tmp_path / "w"), "/weights", writable=False),
        Folder(str(tmp_path / "o" / "deep"), "/out", writable=True),
    )
    assert not (tmp_path / "o").exists(), "made only once there is a container to start"


def test_what_needs_no_folder() -> None:
    for data in (None, "synthetic"):
        options = LocalOptions(data=data)
        assert mount_folders(options) == (options, ())


def test_a_relative_path_and_a_link_are_followed_to_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "below")
    monkeypatch.chdir(tmp_path)
    _, (folder,) = mount_folders(LocalOptions(data="link/.."))
    assert folder.source == str(tmp_path / "real")


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("none", ExitCode.DATA),
        ("file", ExitCode.DATA),
        ("itself", ExitCode.DATA),
        ("n" * 5000, ExitCode.USAGE),
        ("a\0b", ExitCode.USAGE),
        ("", ExitCode.USAGE),
        ("s3://key:secret@bucket/data", ExitCode.USAGE),
        (os.fsdecode(b"\xff"), ExitCode.USAGE),  # the engine cannot be asked for it
    ],
)
def test_what_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, code: ExitCode) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("itself").symlink_to("itself")
    os.mkdir(b"\xff")
    with pytest.raises(FlagbenchError, match="--weights") as caught:
        mount_folders(LocalOptions(weights=given))
    assert caught.value.code is code


def test_a_bucket_is_no_folder() -> None:
    with pytest.raises(FlagbenchError, match="not a URL") as caught:
        mount_folders(LocalOptions(data="s3://bucket/sst2"))
    assert "aws s3 sync" in caught.value.remedy


def test_out_is_made_for_what_is_written_there(tmp_path: Path) -> None:
    for written in (True, False):
        out = tmp_path / "deep" / str(written)
        with output_folder(str(out)):
            assert out.is_dir()
            if written:
                (out / "record.json").write_text("{}")
        assert out.exists() is written


@pytest.mark.parametrize("name", ["file/out", "itself", "s3://bucket"])
def test_out_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("itself").symlink_to("itself")
    with pytest.raises(FlagbenchError, match="--out") as caught, output_folder(name):
        pass
    assert caught.value.code is ExitCode.USAGE


def test_a_name_in_utf_8_is_one_whatever_the_locale(tmp_path: Path) -> None:
    """In this one Python takes file names for ASCII."""
    code = "import sys; from flagbench.runs.launchers.folders import host_path; host_path(sys.argv[1], '--out')"
    env = dict(os.environ, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "\u00e4")], env=env, check=True)
