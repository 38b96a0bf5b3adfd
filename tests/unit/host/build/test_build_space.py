"""How much room a build needs: by what the wheels hold, and without them by the lock's names."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from flagbench.build.space import INSTALLED, SYSTEM, UNPACKED, locked_bytes, require_space, stack_bytes
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.locks.model import Lock, LockEntry, Unresolved

Write = Callable[..., Lock]


def lock_of(lock: Lock, *pins: tuple[str, str]) -> Lock:
    """The lock with these packages."""
    return replace(lock, entries=tuple(LockEntry(name, version) for name, version in pins))


def test_a_wheel_counts_by_what_is_in_it_and_once_as_it_is_sent(mini_lock: Write, tmp_path: Path) -> None:
    path = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("a.py", bytes(10_000_000))
    assert path.stat().st_size < 100_000
    expected = SYSTEM + path.stat().st_size + round(INSTALLED * 10_000_000)
    assert stack_bytes(mini_lock(), {"wheels/a-1-py3-none-any.whl": path, "pip.conf": b"x" * 999}) == expected


@pytest.mark.parametrize("name", ["a-1.tar.gz", "a-1-py3-none-any.whl"])
def test_what_does_not_say_what_it_holds_counts_by_its_size(name: str, mini_lock: Write, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(bytes(1_000_000))
    assert stack_bytes(mini_lock(), {f"wheels/{name}": path}) == SYSTEM + 1_000_000 + round(UNPACKED * 1_000_000)


def test_the_stack_that_was_measured_is_estimated_well(mini_lock: Write) -> None:
    """27 packages with torch for the processor: 1.05 GB of layers."""
    others = [(f"package-{number}", "1") for number in range(26)]
    measured = 1_051_000_000
    assert measured < locked_bytes(lock_of(mini_lock(), ("torch", "2.13.0+cpu"), *others)) < 1.5 * measured


def test_cuda_makes_a_lock_large(mini_lock: Write) -> None:
    light = locked_bytes(lock_of(mini_lock(), ("nvidia-ml-py", "13.615.71")))
    assert light < 500_000_000
    assert locked_bytes(lock_of(mini_lock(), ("nvidia-cublas-cu11", "11.11.3.6"))) > 2 * light
    unresolved = replace(mini_lock(), unresolved=(Unresolved("torch", "2.6.0+cu118", reason="unreachable"),))
    assert locked_bytes(unresolved) > 3_000_000_000


def test_a_disk_that_cannot_be_seen_refuses_nothing() -> None:
    require_space(None, 10**15)
    require_space(10, 10)
    with pytest.raises(FlagbenchError) as refused:
        require_space(1_000_000_000, 2_500_000_000)
    assert "2.5 GB" in refused.value.message
    assert refused.value.code is ExitCode.BUILD_FAILED
