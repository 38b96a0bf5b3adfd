"""Where the cache of fetched folders is; what is done with it: tests/storage/test_prepared_fetch.py."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from flagbench_cases.prepare import cache
from flagbench_cases.shared.errors import UsageError

pytestmark = pytest.mark.image


def test_the_cache_is_where_the_user_says_or_caches_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    home = str(tmp_path / "home")
    assert cache.root({"FLAGBENCH_CACHE": "/big", "HOME": home}) == "/big"
    assert cache.root({"XDG_CACHE_HOME": home + "/xdg", "HOME": home}) == home + "/xdg/flagbench"
    assert cache.root({"HOME": home}) == home + "/.cache/flagbench"
    temporary = tmp_path / ("flagbench-cache-%d" % os.geteuid())
    for homeless in ({}, {"HOME": "relative"}, {"HOME": "/dev/null"}):
        assert cache.root(homeless) == str(temporary)
    assert temporary.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(cache, "MOUNT", "/dev/shm")
    assert cache.root({"HOME": home}) == "/dev/shm", "a volume that is mounted for it"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_what_another_user_put_into_tmpdir_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    os.chown(cache.root({}), 12345, -1)
    with pytest.raises(UsageError):
        cache.root({})


def test_a_cache_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("FLAGBENCH_CACHE", str(tmp_path / "file"))
    with pytest.raises(UsageError), cache.locked(cache.folder_of("glm", "data", b""), lambda: None):
        pass
