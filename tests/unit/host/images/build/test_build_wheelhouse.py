"""A wheelhouse is held against the lock, and a build is given what the lock names alone."""

import hashlib

import pytest

from flagbench.errors import FlagbenchError
from flagbench.images.build_options import check_wheelhouse
from flagbench.images.lockfile import Lock, Unresolved
from flagbench_core.exit_codes import ExitCode
from packages import lock_entry

FILES = {
    "flash_attn-2.7.3.tar.gz": b"source",
    "numpy-2.2.6-cp310-cp310-manylinux_2_28_x86_64.whl": b"numpy",
    "torch-2.6.0+cu118-cp310-cp310-linux_x86_64.whl": b"torch",
}


@pytest.fixture
def lock():
    source, numpy, _ = ("sha256:" + hashlib.sha256(content).hexdigest() for content in FILES.values())
    entries = (lock_entry("flash-attn", "2.7.3", source), lock_entry("numpy", "2.2.6", numpy, "sha256:" + "0" * 64))
    unresolved = (Unresolved("torch", "2.6.0+cu118", reason="no network"),)
    return Lock("a100-cuda11.8", "3.10", None, None, "sha256:" + "0" * 64, entries, unresolved)


@pytest.fixture
def house(tmp_path):
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def test_a_build_is_given_the_locked_files_alone(lock, house):
    for other in ("numpy-2.2.7-py3-none-any.whl", "numpy-2.2.6.tar.gz", "notes.txt", ".hidden"):
        (house / other).write_bytes(b"another")
    assert [path.name for path in check_wheelhouse(house, lock)] == sorted(FILES)


def test_what_is_missing_or_another_file_is_named(lock, house):
    (house / "flash_attn-2.7.3.tar.gz").unlink()
    numpy = next(house.glob("numpy*"))
    numpy.write_bytes(b"num")
    with pytest.raises(FlagbenchError) as refused:
        check_wheelhouse(house, lock)
    assert "flash-attn==2.7.3" in refused.value.message
    assert numpy.name in refused.value.message
    assert refused.value.code is ExitCode.USAGE


def test_a_wheelhouse_that_cannot_be_read(lock, tmp_path):
    with pytest.raises(FlagbenchError) as refused:
        check_wheelhouse(tmp_path / "none", lock)
    assert refused.value.code is ExitCode.USAGE
