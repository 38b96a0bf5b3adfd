"""A wheelhouse against a lock: everything that is missing or another file is named at once."""

from dataclasses import replace

import pytest

from flagbench.build.wheelhouse import check_wheelhouse
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.locks.model import LockEntry, Unresolved

NONE = "sha256:" + "0" * 64


def test_only_what_the_lock_names_is_given(wheelhouse, mini_lock):
    (wheelhouse / "other-1.0-py3-none-any.whl").write_bytes(b"not locked")
    (wheelhouse / "broken-name.whl").write_bytes(b"")
    assert [path.name for path in check_wheelhouse(wheelhouse, mini_lock())] == ["psutil-7.2.2-py3-none-any.whl"]


def test_what_is_missing_and_what_is_another_file_is_named_up_to_a_few(wheelhouse, mini_lock):
    lock = mini_lock(hashes=(NONE,))
    missing = tuple(LockEntry(f"package-{number}", "1.0", (NONE,)) for number in range(20))
    with pytest.raises(FlagbenchError) as refused:
        check_wheelhouse(wheelhouse, replace(lock, entries=(*lock.entries, *missing)))
    assert "psutil-7.2.2-py3-none-any.whl" in refused.value.message
    assert "package-0==1.0" in refused.value.message
    assert "package-7==1.0 and 12 more" in refused.value.message
    assert refused.value.remedy == f"fill it with `flagbench wheels mini -o {wheelhouse}`"


def test_an_unresolved_package_has_to_be_there_by_name(tmp_path, mini_lock):
    unresolved = (Unresolved("torch", "2.6.0", reason="unreachable"),)
    lock = replace(mini_lock(), entries=(), unresolved=unresolved)
    with pytest.raises(FlagbenchError) as refused:
        check_wheelhouse(tmp_path, lock)
    assert "torch==2.6.0" in refused.value.message
    (tmp_path / "torch-2.6.0-py3-none-any.whl").write_bytes(b"whatever")
    assert len(check_wheelhouse(tmp_path, lock)) == 1


def test_a_wheelhouse_that_cannot_be_read(tmp_path, mini_lock):
    with pytest.raises(FlagbenchError) as refused:
        check_wheelhouse(tmp_path / "none", mini_lock())
    assert str(tmp_path / "none") in refused.value.message
    assert refused.value.code is ExitCode.USAGE
