"""How much space a build needs: by what the wheels contain, and without them by the names in the lock."""

import zipfile
from dataclasses import replace

import pytest

from flagbench.build.space import INSTALLED, SYSTEM, UNPACKED, locked_bytes, require_space, stack_bytes
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.locks.model import LockEntry, Unresolved


def test_a_wheel_counts_by_its_content_and_once_as_it_is_sent(mini_lock, tmp_path):
    path = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("a.py", bytes(10_000_000))
    assert path.stat().st_size < 100_000
    expected = SYSTEM + path.stat().st_size + round(INSTALLED * 10_000_000)
    assert stack_bytes(mini_lock(), {"wheels/a-1-py3-none-any.whl": path, "pip.conf": b"x" * 999}) == expected


@pytest.mark.parametrize("name", ["a-1.tar.gz", "a-1-py3-none-any.whl"])
def test_a_file_of_unknown_content_counts_by_its_size(name, mini_lock, tmp_path):
    path = tmp_path / name
    path.write_bytes(bytes(1_000_000))
    assert stack_bytes(mini_lock(), {f"wheels/{name}": path}) == SYSTEM + 1_000_000 + round(UNPACKED * 1_000_000)


@pytest.mark.parametrize(
    ("packages", "least", "most"),
    [
        # As measured: 1.05 GB of layers.
        ({"torch": "2.13.0+cpu", **{f"package-{number}": "1" for number in range(26)}}, 1_051_000_000, 1_600_000_000),
        ({"nvidia-ml-py": "13.615.71"}, SYSTEM, 500_000_000),
        ({"nvidia-cublas-cu11": "11.11.3.6"}, 900_000_000, 1_500_000_000),
        ({"torch": "2.6.0+cu118"}, 3_000_000_000, 4_000_000_000),
    ],
)
def test_without_files_names_decide(packages, least, most, mini_lock):
    entries = tuple(LockEntry(name, version) for name, version in packages.items())
    unresolved = tuple(Unresolved(name, version, reason="unreachable") for name, version in packages.items())
    assert least < locked_bytes(replace(mini_lock(), entries=entries)) < most
    assert least < locked_bytes(replace(mini_lock(), entries=(), unresolved=unresolved)) < most


def test_a_disk_that_cannot_be_seen_refuses_nothing():
    require_space(None, 10**15)
    require_space(10, 10)
    with pytest.raises(FlagbenchError, match=r"2\.5 GB") as refused:
        require_space(1_000_000_000, 2_500_000_000)
    assert refused.value.code is ExitCode.BUILD_FAILED
