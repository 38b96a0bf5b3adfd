"""The commit of a checkout, asked of git itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from flagbench.system import checkout, queries
from running import need


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit of a file of each kind."""
    need(shutil.which("git") is not None, "git")
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "checkout"
    for name in ("entrypoints/a.py", "docs/a.md"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("first\n", encoding="utf-8")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "-c", "user.name=T", "-c", "user.email=t@example.org", "commit", "--quiet", "-m", "first")
    monkeypatch.setattr(checkout, "TOP", folder)
    return folder


def git(folder: Path, *arguments: str) -> str:
    """What git says."""
    return subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True).stdout


def test_what_enters_no_image_does_not_count(top: Path) -> None:
    (top / "docs" / "a.md").write_text("second\n", encoding="utf-8")
    (top / "notes").touch()
    assert checkout.commit() == git(top, "rev-parse", "HEAD").strip()


@pytest.mark.parametrize("name", ["entrypoints/a.py", "images/new", "manifests/new", "builder/new"])
def test_what_decides_an_image_counts(name: str, top: Path) -> None:
    (top / name).parent.mkdir(exist_ok=True)
    (top / name).write_text("second\n", encoding="utf-8")
    assert checkout.commit() == git(top, "rev-parse", "HEAD").strip() + "-dirty"


def test_a_removed_file_counts(top: Path) -> None:
    (top / "entrypoints" / "a.py").unlink()
    assert str(checkout.commit()).endswith("-dirty")


def test_without_a_commit_or_a_repository_there_is_none(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A folder inside somebody else's repository is no checkout of this one.
    with monkeypatch.context() as inside:
        inside.setattr(checkout, "TOP", top / "entrypoints")
        assert checkout.commit() is None
    shutil.rmtree(top / ".git")
    assert checkout.commit() is None
    git(top, "init", "--quiet")
    assert checkout.commit() is None


def test_a_git_that_does_not_answer_is_not_waited_for(
    top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "git").write_text("#!/bin/sh\nsleep 600\n", encoding="utf-8")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(queries, "ANSWER_SECONDS", 0.1)
    assert checkout.commit() is None
