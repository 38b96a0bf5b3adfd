"""Files are replaced whole, and only files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flagbench.system.files import write_atomically


def test_a_file_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"before")
    write_atomically(file, b"after")
    assert (file.read_bytes(), os.listdir(tmp_path)) == (b"after", ["file"])


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder"])
def test_nothing_else_is_written_to(tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").write_bytes(b"before")
    path = tmp_path / "path"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("file" if kind == "link" else "new")
    with pytest.raises(OSError, match="not a file"):
        write_atomically(path, b"after")
    assert (tmp_path / "file").read_bytes() == b"before"
    assert sorted(os.listdir(tmp_path)) == ["file", "path"]
