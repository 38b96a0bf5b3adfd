"""`flagbench results export`: records for spreadsheets, pages and programs, and verdicts that are up to date."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

import pytest

from flagbench.history import verdicts
from flagbench.records.store import Store
from flagbench.report.export import to_csv, to_markdown
from flagbench_core.exit_codes import ExitCode
from unit.host.conftest import REPLAY, Edit, Flagbench, MakeRecord


@pytest.fixture(autouse=True)
def filled(store: Store, make_record: MakeRecord) -> None:
    """A record that reproduces a claim, an older one that cannot, and a damaged one."""
    store.put(REPLAY.read_bytes())
    store.put(make_record(record_id="record-old", created_at="2020-01-02T00:00:00Z"))
    damaged = store.put(make_record(record_id="record-bad", created_at="2020-01-01T00:00:00Z"))
    Path(damaged.location).write_bytes(b"{}")


def exported(flagbench: Flagbench, form: str) -> str:
    ended = flagbench(f"results export --format {form}")
    assert (ended.code, "record-bad" in ended.err) == (0, True)
    return str(ended.out)


def test_csv_has_a_row_per_record_and_a_column_per_metric(flagbench: Flagbench) -> None:
    reproduced, old = csv.DictReader(io.StringIO(exported(flagbench, "csv")))
    assert (reproduced["verdict"], reproduced["claim"]) == ("REPRODUCED", "distilbert/a100-1x8-fp32")
    assert reproduced["host"] == json.loads(REPLAY.read_bytes())["ranks"][0]["host"]
    shown = [old[name] for name in ("record_id", "duration", "p_core", "verdict")]
    assert shown == ["record-old", "12.5", "321.5", "INVALID"]


def test_jsonl_has_the_records_themselves(flagbench: Flagbench, make_record: MakeRecord) -> None:
    assert list(map(json.loads, exported(flagbench, "jsonl").splitlines())) == [
        json.loads(REPLAY.read_bytes()),
        json.loads(make_record(record_id="record-old", created_at="2020-01-02T00:00:00Z")),
    ]


def test_markdown_is_a_table(flagbench: Flagbench) -> None:
    header, line, *rows = exported(flagbench, "md").splitlines()
    assert len(rows) == 2
    assert {row.count("|") for row in (header, line, *rows)} == {header.count("|")}


def test_filters_and_a_file(flagbench: Flagbench, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("before")
    assert flagbench(f"results export --format jsonl --since 2020-01-02 -o {out}").code == 0
    assert len(out.read_text().splitlines()) == 2
    assert flagbench(f"results export --format jsonl --case glm -o {out}").code == 0
    assert out.read_text() == ""
    assert sorted(os.listdir(tmp_path)) == ["out.jsonl", "store"]
    assert flagbench("results export --format jsonl --case glm") == (0, "", "")


def test_a_full_disk_leaves_the_file_as_it_was(flagbench: Flagbench, small_disk: Path) -> None:
    out = small_disk / "out.csv"
    out.write_text("before")
    (small_disk / "filler").write_bytes(b"x" * 60_000)
    assert flagbench(f"results export --format jsonl -o {out}").code == ExitCode.NOT_STORED
    assert out.read_text() == "before"
    assert sorted(os.listdir(small_disk)) == ["filler", "out.csv"]


@pytest.mark.parametrize("out", ["/dev/full", "/nowhere/out.csv", "."])
def test_a_place_that_takes_no_file_is_named(flagbench: Flagbench, out: str) -> None:
    ended = flagbench(f"results export --format csv -o {out}")
    assert (ended.code, out in ended.err) == (ExitCode.NOT_STORED, True)


def test_no_cell_is_a_formula() -> None:
    texts = ["=1+1", "+1", "-1", "@x", "=cmd|' /C calc'!A0"]
    names, cells, (number,) = csv.reader(io.StringIO(to_csv(texts, [texts, [-1.5]])))
    assert names == cells == [f"'{text}" for text in texts]
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


def test_verdicts_follow_changed_claims_and_rules(
    flagbench: Flagbench, manifests: Path, monkeypatch: pytest.MonkeyPatch, edit: Edit
) -> None:
    computed: list[str] = []
    compute = verdicts._judge

    def counted(record: verdicts.Record, catalog: verdicts.Catalog) -> verdicts.Summary:
        computed.append(record.record_id)
        return compute(record, catalog)

    def listed() -> tuple[str, int]:
        """The first record's verdict, and how many were computed for it."""
        verdicts._basis_of.cache_clear()
        computed.clear()
        return flagbench("results ls --json").json["records"][0]["verdict"], len(computed)

    monkeypatch.setattr(verdicts, "_judge", counted)
    monkeypatch.setenv("FLAGBENCH_MANIFESTS", str(manifests))
    assert listed() == ("REPRODUCED", 2)
    assert listed() == ("REPRODUCED", 0)
    claims = manifests / "claims" / "distilbert.yaml"
    edit(claims, "value: 1942.6", "value: 9942.6")
    assert listed() == ("BELOW", 2)
    edit(claims, "value: 9942.6", "value: 1942.6")
    assert listed() == ("REPRODUCED", 2)
    for changed in ("stacks/cpu.yaml", "devices/h100-sxm.yaml"):
        (manifests / changed).open("a").write("# changed\n")
        assert listed() == ("REPRODUCED", 2)
    monkeypatch.setattr(verdicts, "CACHED_AS", verdicts.CACHED_AS + 1)
    assert listed() == ("REPRODUCED", 2)
