"""A home for a user that has none; one that has a home keeps it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flagbench_cases.shared import user_home

pytestmark = pytest.mark.image


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "spool" / "home")


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing below /locked can be written; said by hand, since root may write anywhere."""
    monkeypatch.setattr(user_home, "_is_writable", lambda path: bool(path) and not path.startswith("/locked"))


@pytest.mark.parametrize("env", [{}, {"HOME": ""}, {"HOME": "/locked"}, {"HOME": "/locked", "HF_HOME": "/locked/c"}])
@pytest.mark.usefixtures("locked")
def test_without_a_home_everything_lies_in_the_folder(env: dict[str, str], folder: str) -> None:
    user_home.prepare(env, folder)
    assert env["HOME"] == folder
    assert os.path.isdir(folder)
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME", "HF_HOME", "MPLCONFIGDIR"):
        assert os.path.dirname(env[variable]) == folder


@pytest.mark.usefixtures("locked")
def test_a_home_that_can_be_written_is_left_alone(folder: str) -> None:
    env = {"HOME": "/mine", "HF_HOME": "/elsewhere"}
    user_home.prepare(env, folder)
    assert (env["HOME"], env["HF_HOME"]) == ("/mine", "/elsewhere")
    assert "XDG_CACHE_HOME" not in env
    assert not os.path.exists(folder)


@pytest.mark.usefixtures("locked")
def test_a_cache_that_cannot_be_written_moves(folder: str) -> None:
    env = {"HOME": "/mine", "TRITON_CACHE_DIR": "/locked/triton"}
    user_home.prepare(env, folder)
    assert env == dict(env, HOME="/mine", TRITON_CACHE_DIR=os.path.join(folder, "triton"))


def test_a_user_without_an_entry_gets_a_name(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345678)
    env = {"USER": "", "LOGNAME": "me"}
    user_home.prepare(env, folder)
    assert (env["USER"], env["LOGNAME"]) == ("flagbench", "me")
