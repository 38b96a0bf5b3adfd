"""Build directories on disk: written once, in the place of nothing."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from flagbench.errors import FlagbenchError
from flagbench.images.render.directory import make_build_directory, write_tree
from flagbench_core.exit_codes import ExitCode

IMAGE = make_build_directory(
    "stack/x", "FROM scratch\n", {"steps/b/run.sh": b"1", "steps/a": b"22", "inputs/README": b"3"}
)


def test_a_directory_is_written_and_never_replaced(tmp_path: Path) -> None:
    write_tree({"stack": IMAGE}, tmp_path / "out")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {p.relative_to(tmp_path / "out" / "stack").as_posix(): p.read_bytes() for p in files} == IMAGE.files
    assert {path.stat().st_mode & 0o777 for path in files} == {0o644}
    (tmp_path / "out" / "link").symlink_to("nowhere")
    for name in ("stack", "link"):
        with pytest.raises(FlagbenchError) as caught:
            write_tree({"distilbert": IMAGE, name: IMAGE}, tmp_path / "out")
        assert caught.value.code is ExitCode.USAGE
    assert not (tmp_path / "out" / "distilbert").exists()


def test_nothing_is_left_of_a_directory_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_disk(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", fill_disk)
    with pytest.raises(FlagbenchError) as caught:
        write_tree({"stack": IMAGE}, tmp_path / "out")
    assert (caught.value.code, [*(tmp_path / "out").iterdir()]) == (ExitCode.USAGE, [])
