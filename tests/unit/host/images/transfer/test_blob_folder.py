"""Where blobs are kept on their way: what killed processes left there goes, what others use stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from flagbench.images.bucket import blob_folder


def test_only_what_nobody_uses_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAGBENCH_CACHE", str(tmp_path))
    left = tmp_path / "blobs" / "flagbench-left"
    left.mkdir(parents=True)
    with blob_folder() as one:
        assert not left.exists()
        with blob_folder() as other:
            assert one.is_dir()
            assert other != one
    assert not one.exists()
