"""`flagbench results` lists the records of a store and shows one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from flagbench.cli import complete, main
from flagbench.errors import ExitCode
from flagbench.stores import FolderBlobs, Store

MakeRecord = Callable[..., bytes]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store the commands find in the environment."""
    monkeypatch.setenv("FLAGBENCH_STORE", str(tmp_path / "store"))
    return Store(FolderBlobs(tmp_path / "store"))


@pytest.fixture
def filled(store: Store, make_record: MakeRecord) -> Store:
    """Two good records, the newer one failed."""
    store.put(make_record(record_id="the-older-one"))
    status = {"state": "failed", "phase": "train", "reason": "a rank died", "remedy": "look", "exit_code": 4}
    store.put(
        make_record(
            record_id="the-newer-one",
            created_at="2026-01-02T00:00:00Z",
            stack="a100-cuda11.6",
            status=status,
            metrics=[],
        )
    )
    return store


def test_ls_is_newest_first(filled: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["results", "ls"]) == 0
    header, newer, older = capsys.readouterr().out.splitlines()
    assert header.split() == ["RECORD", "CREATED", "IMAGE", "PRESET", "STATE", "DURATION", "GATE", "VERDICT"]
    assert newer.split()[:3] == ["the-newer-one", "2026-01-02T00:00:00Z", "distilbert:a100-cuda11.6"]
    assert newer.split()[3:] == ["tiny", "failed", "12.5s", "-", "INVALID"]
    assert older.split()[-5:] == ["ok", "12.5s", "p_core", "321.5", "INVALID"]


def test_ls_filters_by_alias_and_limits(filled: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["results", "ls", "--stack", "a100", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["store"] == filled.url
    assert [entry["record_id"] for entry in shown["records"]] == ["the-newer-one"]
    assert main.run(["results", "ls", "--limit", "1", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["records"]) == 1
    assert main.run(["results", "ls", "--case", "distilbrt"]) == ExitCode.USAGE
    assert "'distilbrt'" in capsys.readouterr().err
    assert main.run(["results", "ls", "--state", "failed", "--json"]) == 0
    assert [entry["state"] for entry in json.loads(capsys.readouterr().out)["records"]] == ["failed"]
    assert main.run(["results", "ls", "--since", "2026-01-02", "--json"]) == 0
    assert [entry["record_id"] for entry in json.loads(capsys.readouterr().out)["records"]] == ["the-newer-one"]
    assert main.run(["results", "ls", "--since", "yesterday"]) == ExitCode.USAGE
    assert "--since" in capsys.readouterr().err


def test_ls_shows_a_damaged_record_as_damaged(filled: Store, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(next(filled.list()).location)
    path.write_bytes(path.read_bytes().replace(b"a rank died", b"all is well"))
    assert main.run(["results", "ls", "--json"]) == 0
    newer, older = json.loads(capsys.readouterr().out)["records"]
    assert newer["state"] is None
    assert "checksum" in newer["error"]
    assert older["metrics"] == {"p_core": 321.5}
    assert main.run(["results", "show", "last"]) == ExitCode.DATA


def test_show_last_says_how_it_ended(filled: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["results", "show"]) == 0
    text = capsys.readouterr().out
    facts = dict(line.split(maxsplit=1) for line in text.splitlines() if line and line[0] != " ")
    assert facts["status"].split()[0] == "failed"
    assert (facts["reason"], facts["fix"]) == ("a rank died", "look")


def test_show_has_intervals_conditions_and_checks(filled: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["results", "show", "the-older-one"]) == 0
    text = capsys.readouterr().out
    assert "318 to 325 (block bootstrap, within-run)" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["driver", "unknown"] in rows
    assert ["recompute", "false"] in rows
    assert ["loss_finite", "ok", "200", "of", "200", "steps"] in rows


def test_what_a_record_says_neither_moves_the_cursor_nor_forges_a_line(
    store: Store, make_record: MakeRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "x\x1b[2J\x9b31m\u202eOWNED\nstatus   ok"
    status = {"state": "failed", "phase": "train", "reason": hostile, "remedy": hostile, "exit_code": 4}
    checks = [{"name": hostile, "ok": False, "detail": hostile}]
    metrics = [{"name": "p_core", "value": 1.0, "unit": hostile, "scope": "job", "note": hostile}]
    conditions = {"driver": hostile, hostile: 1}
    store.put(make_record(status=status, quality={"checks": checks}, metrics=metrics, conditions=conditions))
    assert main.run(["results", "show"]) == 0
    text = capsys.readouterr().out
    assert r"reason   x\x1b[2J\x9b31m\u202eOWNED\nstatus   ok" in text
    assert all(line.isprintable() for line in text.splitlines())
    assert "status   ok" not in text.splitlines()


def test_show_json_is_the_stored_record(
    filled: Store, make_record: MakeRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["results", "show", "the-older-one", "--json"]) == 0
    assert capsys.readouterr().out.encode() == make_record(record_id="the-older-one") + b"\n"


def test_a_limit_beyond_every_number_lists_all(filled: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["results", "ls", "--json", "--limit", str(10**30), "--store", filled.url]) == 0
    assert len(json.loads(capsys.readouterr().out)["records"]) == len(list(filled.list()))


@pytest.mark.parametrize(
    ("record", "code"), [("no-such-record", ExitCode.DATA), ("../../../etc/passwd", ExitCode.USAGE)]
)
def test_show_of_what_is_not_there(
    filled: Store, capsys: pytest.CaptureFixture[str], record: str, code: ExitCode
) -> None:
    assert main.run(["results", "show", record]) == code
    assert "`flagbench results ls`" in capsys.readouterr().err


def test_an_empty_store(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["results", "ls"]) == 0
    assert store.url in capsys.readouterr().out
    assert main.run(["results", "ls", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"store": store.url, "records": []}
    assert main.run(["results", "show", "last"]) == ExitCode.DATA
    assert "flagbench run" in capsys.readouterr().err


def test_completion_knows_records(filled: Store) -> None:
    assert complete.records("") == ["last", "the-newer-one", "the-older-one"]
    assert complete.records("the-o") == ["the-older-one"]
