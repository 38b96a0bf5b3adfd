"""A wheelhouse against a lock: everything that is missing or another file is named at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flagbench.build.wheelhouse import check_wheelhouse
from flagbench.errors import FlagbenchError
from flagbench.locks.model import Lock, LockEntry, Unresolved

NONE = "sha256:" + "0" * 64


def lock_of(*entries: LockEntry, unresolved: tuple[Unresolved, ...] = ()) -> Lock:
    """A lock of `mini` with these packages."""
    return Lock("mini", "3.11", "debian:bookworm-slim", None, NONE, entries, unresolved)


def test_only_what_the_lock_names_is_given(wheelhouse: Path, mini_lock: Callable[..., Lock]) -> None:
    (wheelhouse / "other-1.0-py3-none-any.whl").write_bytes(b"not locked")
    (wheelhouse / "broken-name.whl").write_bytes(b"")
    assert [path.name for path in check_wheelhouse(wheelhouse, mini_lock())] == ["psutil-7.2.2-py3-none-any.whl"]


def test_another_file_of_the_same_name_is_refused(wheelhouse: Path, mini_lock: Callable[..., Lock]) -> None:
    with pytest.raises(FlagbenchError) as refused:
        check_wheelhouse(wheelhouse, mini_lock(hashes=(NONE,)))
    assert "psutil-7.2.2" in refused.value.message
    assert refused.value.remedy == f"fill it with `flagbench wheels mini -o {wheelhouse}`"


def test_every_missing_package_is_named_up_to_a_few(tmp_path: Path) -> None:
    entries = [LockEntry(f"package-{number}", "1.0", (NONE,)) for number in range(20)]
    with pytest.raises(FlagbenchError) as refused:
        check_wheelhouse(tmp_path, lock_of(*entries))
    assert "package-0==1.0" in refused.value.message


@pytest.mark.parametrize(
    ("name", "version", "file"),
    [
        ("torch", "2.6.0+cu118", "torch-2.6.0+cu118-cp310-cp310-linux_x86_64.whl"),
        ("typing-extensions", "4.0", "typing_extensions-4.0-py3-none-any.whl"),
        ("flash-attn", "2.5.9.post1", "flash_attn-2.5.9.post1.tar.gz"),
        ("hjson", "3.1.0", "Hjson-3.1.0.zip"),
    ],
)
def test_names_and_versions_are_compared_as_indexes_do(name: str, version: str, file: str, tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(b"")
    empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert check_wheelhouse(tmp_path, lock_of(LockEntry(name, version, (empty,)))) == (tmp_path / file,)


def test_an_unresolved_package_has_to_be_there_by_name(tmp_path: Path) -> None:
    lock = lock_of(unresolved=(Unresolved("torch", "2.6.0", reason="unreachable"),))
    with pytest.raises(FlagbenchError) as refused:
        check_wheelhouse(tmp_path, lock)
    assert "torch==2.6.0" in refused.value.message
    (tmp_path / "torch-2.6.0-py3-none-any.whl").write_bytes(b"whatever")
    assert len(check_wheelhouse(tmp_path, lock)) == 1
