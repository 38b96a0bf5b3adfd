"""Every command that takes a record takes a file, standard input, an id, its beginning, last and last~N."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from flagbench.cli import main
from flagbench.errors import ExitCode
from flagbench.stores import open_store

MakeRecord = Callable[..., bytes]
Flagbench = Callable[..., tuple[int, str, str]]
IDS = ("20260103T000000Z-alpha", "20260102T000000Z-beta", "20260102T000000Z-be", "20260101T000000Z-gamma")
"""Newest first."""


@pytest.fixture
def flagbench(
    tmp_path: Path, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Flagbench:
    """The command line, in an empty folder, with the four records in its store."""
    monkeypatch.setenv("FLAGBENCH_STORE", str(tmp_path / "store"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    store = open_store(str(tmp_path / "store"))
    for number, record_id in enumerate(IDS):
        store.put(make_record(record_id=record_id, created_at=f"2026-01-{9 - number:02}T00:00:00Z"))

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main.run(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("last", IDS[0]),
        ("last~0", IDS[0]),
        ("last~", IDS[1]),
        ("last~1", IDS[1]),
        ("last~003", IDS[3]),
        ("20260103", IDS[0]),
        ("20260101T000000Z-gamma", IDS[3]),
        # The whole of one id, although another begins with it.
        ("20260102T000000Z-be", IDS[2]),
        ("20260102T000000Z-bet", IDS[1]),
    ],
)
def test_a_record_is_found_by_each_of_its_names(flagbench: Flagbench, name: str, meant: str) -> None:
    code, out, _ = flagbench("results", "show", name, "--json")
    assert (code, json.loads(out)["record_id"]) == (0, meant)
    other = IDS[1] if meant != IDS[1] else IDS[0]
    code, out, _ = flagbench("compare", other, name, "--json")
    assert (code, json.loads(out)["b"]) == (0, meant)
    code, out, _ = flagbench("verify", name, "--json")
    assert (code, json.loads(out)["records"]) == (ExitCode.INVALID, [meant])  # none of them has a configuration
    code, _, err = flagbench("verify", other, "--baseline", name)
    assert (code, meant in err) == (ExitCode.DATA, True)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("last~4", ExitCode.DATA),
        ("last~999999", ExitCode.DATA),
        ("last~99999999999999999999", ExitCode.USAGE),
        ("last~-1", ExitCode.USAGE),
        ("last~\u0661", ExitCode.USAGE),
        ("2", ExitCode.USAGE),
        ("20260102", ExitCode.USAGE),
        ("3", ExitCode.DATA),
        ("20260104T000000Z-delta", ExitCode.DATA),
        ("*", ExitCode.USAGE),
        ("2026010[12]T000000Z-gamma", ExitCode.USAGE),
        ("x" * 5000, ExitCode.USAGE),
        ("\udcff", ExitCode.USAGE),
        ("", ExitCode.USAGE),
    ],
)
def test_a_name_that_matches_no_record_or_several_is_an_error(flagbench: Flagbench, name: str, code: int) -> None:
    for arguments in (["verify", name], ["compare", "last", name], ["results", "show", name]):
        found, out, err = flagbench(*arguments)
        assert (found, out) == (code, "")
        assert err.startswith("error: ")
        assert len(err) < 1000


def test_a_beginning_of_several_ids_lists_them(flagbench: Flagbench) -> None:
    _, _, err = flagbench("verify", "20260102T")
    assert [line.strip() for line in err.splitlines()[1:-1]] == sorted(IDS[1:3])


def test_an_existing_path_is_a_path(flagbench: Flagbench, make_record: MakeRecord) -> None:
    Path("20260103").write_bytes(make_record(record_id="from-a-file"))
    Path("last").write_bytes(make_record(record_id="from-a-file"))
    assert json.loads(flagbench("compare", "last", "20260103", "--json")[1])["b"] == "from-a-file"
    assert json.loads(flagbench("compare", "./last", "last", "--json")[1])["a"] == "from-a-file"
    assert json.loads(flagbench("compare", "./last", "last", "--json")[1])["b"] == IDS[0]
