"""What the tests of the bundle of a reproduction share."""

from __future__ import annotations

from pathlib import Path

import pytest

from reproductions import Files, bundle_files, record, written


@pytest.fixture(scope="module")
def files() -> Files:
    return bundle_files(record())


@pytest.fixture
def file(tmp_path: Path, files: Files) -> Path:
    """A sound bundle as one file."""
    written(tmp_path / "bundle.tar.gz", files)
    return tmp_path / "bundle.tar.gz"
