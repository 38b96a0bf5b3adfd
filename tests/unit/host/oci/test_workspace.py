"""The folder of a push: removed with what killed pushes left, but never under a running one."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from requests import ConnectionError as NoConnection

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.oci.workspace import workspace


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the folders are."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "flagbench" / "pushing"


def test_what_killed_pushes_left_is_removed(parent: Path) -> None:
    for name, files in {"locked once": ["lock", "layer"], "not locked yet": []}.items():
        (parent / name).mkdir(parents=True)
        for file in files:
            (parent / name / file).touch()
    with workspace() as first:
        assert [*parent.iterdir()] == [first]
        with workspace() as second:
            assert {*parent.iterdir()} == {first, second}
    assert [*parent.iterdir()] == []


@pytest.mark.parametrize(
    ("error", "expected"),
    [(OSError(errno.ENOSPC, "No space left on device"), FlagbenchError), (NoConnection("reset"), NoConnection)],
)
def test_an_error_of_the_disk_is_told_from_one_of_the_network(error: OSError, expected: type[Exception]) -> None:
    with pytest.raises(expected) as caught, workspace():
        raise error
    assert getattr(caught.value, "code", ExitCode.ENGINE) is ExitCode.ENGINE
