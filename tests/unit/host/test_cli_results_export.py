"""`flagbench results export`: records for spreadsheets, pages and programs, and verdicts that are up to date."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flagbench import results
from flagbench.cli import main
from flagbench.errors import ExitCode
from flagbench.report.export import to_csv, to_markdown
from flagbench.stores import FolderBlobs, Store

MakeRecord = Callable[..., bytes]
REPLAY = Path(__file__).parent / "verify" / "replays" / "a100-1x8.json"
MANIFESTS = Path(__file__).parents[3] / "manifests"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_record: MakeRecord) -> Store:
    """A record that reproduces a claim, an older one that cannot, and a damaged one."""
    monkeypatch.setenv("FLAGBENCH_STORE", str(tmp_path / "store"))
    made = Store(FolderBlobs(tmp_path / "store"))
    made.put(REPLAY.read_bytes())
    made.put(make_record(record_id="record-old", created_at="2020-01-02T00:00:00Z"))
    damaged = Path(made.put(make_record(record_id="record-bad", created_at="2020-01-01T00:00:00Z")).location)
    damaged.write_bytes(b"{}")
    return made


def exported(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main.run(["results", "export", *arguments]) == 0
    output = capsys.readouterr()
    assert "record-bad" in output.err
    return output.out


def test_csv_has_a_row_per_record_and_a_column_per_metric(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    reproduced, old = csv.DictReader(io.StringIO(exported(capsys, "--format", "csv")))
    assert (reproduced["verdict"], reproduced["claim"]) == ("REPRODUCED", "distilbert/a100-1x8-fp32")
    assert (old["record_id"], old["duration"], old["p_core"], old["verdict"]) == (
        "record-old", "12.5", "321.5", "INVALID",
    )  # fmt: skip


def test_jsonl_has_the_records_themselves(
    store: Store, capsys: pytest.CaptureFixture[str], make_record: MakeRecord
) -> None:
    first, second = map(json.loads, exported(capsys, "--format", "jsonl").splitlines())
    assert first == json.loads(REPLAY.read_bytes())
    assert second == json.loads(make_record(record_id="record-old", created_at="2020-01-02T00:00:00Z"))


def test_markdown_is_a_table(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    header, line, *rows = exported(capsys, "--format", "md").splitlines()
    assert len(rows) == 2
    assert {row.count("|") for row in (header, line, *rows)} == {header.count("|")}


def test_filters_and_a_file(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("before")
    assert main.run(["results", "export", "--format", "jsonl", "--since", "2020-01-02", "-o", str(out)]) == 0
    assert len(out.read_text().splitlines()) == 2
    assert main.run(["results", "export", "--format", "jsonl", "--case", "glm", "-o", str(out)]) == 0
    assert out.read_text() == ""
    assert sorted(os.listdir(tmp_path)) == ["out.jsonl", "store"]
    assert main.run(["results", "export", "--format", "jsonl", "--case", "glm"]) == 0
    assert capsys.readouterr().out == ""


def test_a_full_disk_leaves_the_file_as_it_was(store: Store, small_disk: Path) -> None:
    out = small_disk / "out.csv"
    out.write_text("before")
    (small_disk / "filler").write_bytes(b"x" * 60_000)
    assert main.run(["results", "export", "--format", "jsonl", "-o", str(out)]) == ExitCode.NOT_STORED
    assert out.read_text() == "before"
    assert sorted(os.listdir(small_disk)) == ["filler", "out.csv"]


@pytest.mark.parametrize("out", ["/dev/full", "/nowhere/out.csv", "."])
def test_a_place_that_takes_no_file_is_named(store: Store, capsys: pytest.CaptureFixture[str], out: str) -> None:
    assert main.run(["results", "export", "--format", "csv", "-o", out]) == ExitCode.NOT_STORED
    assert out in capsys.readouterr().err


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "=cmd|' /C calc'!A0"])
def test_no_cell_is_a_formula(text: str) -> None:
    ((name,), (cell,), (number,)) = csv.reader(io.StringIO(to_csv([text], [[text], [-1.5]])))
    assert name == cell == f"'{text}"
    assert number == "-1.5"


def test_csv_and_markdown_keep_their_rows() -> None:
    hostile = 'a|b\\|c\n"d",<script>\x1b[2J\r'
    assert len(to_csv(["a"], [[hostile]]).splitlines()) == 2
    table = to_markdown(["a"], [[hostile]])
    assert len(table.splitlines()) == 3
    row = table.splitlines()[2]
    assert row.replace("\\\\", "").replace("\\|", "").count("|") == 2
    assert "\\<script" in row
    assert row.isprintable()


def test_a_verdict_is_computed_again_when_a_claim_or_flagbench_changes(
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    edit: Callable[[Path, str, str], None],
) -> None:
    computed: list[str] = []
    compute = results._judged

    def counted(summary: results.Summary, record: results.Record, catalog: results.Catalog) -> results.Summary:
        computed.append(record.record_id)
        return compute(summary, record, catalog)

    def verdict() -> str:
        results._basis.cache_clear()
        assert main.run(["results", "ls", "--json"]) == 0
        return str(json.loads(capsys.readouterr().out)["records"][0]["verdict"])

    monkeypatch.setattr(results, "_judged", counted)
    shutil.copytree(MANIFESTS, tmp_path / "manifests")
    monkeypatch.setenv("FLAGBENCH_MANIFESTS", str(tmp_path / "manifests"))
    assert verdict() == "REPRODUCED"
    assert len(computed) == 2
    assert verdict() == "REPRODUCED"
    assert len(computed) == 2
    claims = tmp_path / "manifests" / "claims" / "distilbert.yaml"
    edit(claims, "value: 1942.6", "value: 9942.6")
    assert verdict() == "BELOW"
    assert len(computed) == 4
    edit(claims, "value: 9942.6", "value: 1942.6")
    assert verdict() == "REPRODUCED"
    monkeypatch.setattr(results, "__version__", "9.9.9")
    computed.clear()
    assert verdict() == "REPRODUCED"
    assert len(computed) == 2
