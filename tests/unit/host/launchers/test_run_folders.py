"""A run's folders are looked at before anything starts, and its arguments say where the container sees them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.launchers.folders import Folder, mount_folders, output_folder
from flagbench.request import LocalOptions


def refused(option: str, given: str) -> FlagbenchError:
    """The error for a folder, which names its option."""
    with pytest.raises(FlagbenchError) as caught:
        mount_folders(LocalOptions(**{option: given}))
    assert f"--{option}" in caught.value.message
    return caught.value


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


@pytest.mark.parametrize("option", ["data", "weights"])
def test_a_folder_that_is_not_there(tmp_path: Path, option: str) -> None:
    (tmp_path / "file").write_text("")
    for name in ("none", "file"):
        error = refused(option, str(tmp_path / name))
        assert error.code is ExitCode.DATA
        assert name in error.message


@pytest.mark.parametrize("given", ["", "s3://bucket/data", "a\0b"])
def test_what_is_no_folder(given: str) -> None:
    for option in ("data", "weights", "out"):
        assert refused(option, given).code is ExitCode.USAGE


@pytest.mark.parametrize("name", ["itself", "n" * 5000])
def test_what_no_folder_can_be(tmp_path: Path, name: str) -> None:
    (tmp_path / "itself").symlink_to("itself")
    for option in ("data", "weights"):
        refused(option, str(tmp_path / name))
    with pytest.raises(FlagbenchError) as caught, output_folder(str(tmp_path / name)):
        pass
    assert caught.value.code is ExitCode.USAGE
    assert "--out" in caught.value.message


def test_out_is_made_for_what_is_written_there(tmp_path: Path) -> None:
    for written in (True, False):
        out = tmp_path / "deep" / str(written)
        with output_folder(str(out)):
            assert out.is_dir()
            if written:
                (out / "record.json").write_text("{}")
        assert out.exists() is written


def test_out_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FlagbenchError) as caught, output_folder(str(tmp_path / "file" / "out")):
        pass
    assert caught.value.code is ExitCode.USAGE


def test_a_name_that_the_engine_cannot_be_asked_for(tmp_path: Path) -> None:
    os.mkdir(os.fsencode(tmp_path) + b"/\xff")
    assert refused("data", os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).code is ExitCode.USAGE
