"""`flagbench results` lists the records of a store and shows one."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from flagbench.console.page import render
from flagbench.history.verdicts import with_verdicts
from flagbench.records.store import Store, StoredRecord
from flagbench.report.record_page import listing
from flagbench_core.exit_codes import ExitCode
from unit.host.conftest import REPLAY, Flagbench, MakeRecord
from unit.host.verdict.conftest import ROWS


class Terminal(io.StringIO):
    """A stream that tables are cut for."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def filled(store: Store, make_record: MakeRecord) -> Store:
    """Two good records, the newer one failed."""
    store.put(make_record(record_id="the-older-one"))
    status = {"state": "failed", "phase": "train", "reason": "a rank died", "remedy": "look", "exit_code": 4}
    changes = {"created_at": "2026-01-02T00:00:00Z", "stack": "a100-cuda11.6", "status": status, "metrics": []}
    store.put(make_record(record_id="the-newer-one", **changes))
    return store


def test_ls_is_newest_first(filled: Store, flagbench: Flagbench) -> None:
    header, newer, older = flagbench("results ls").out.splitlines()
    assert header.split()[:6] == ["RECORD", "VERDICT", "RATIO", "SPEED", "HOST", "METRIC"]
    assert header.split()[6:] == ["IMAGE", "PRESET", "CREATED", "STATE", "DURATION"]
    assert newer.split()[:6] == ["the-newer-one", "FAILED", "-", "-", "-", "-"]
    assert newer.split()[6:] == ["distilbert:a100-cuda11.6", "tiny", "2026-01-02T00:00:00Z", "failed", "12.5s"]
    assert older.split()[:7] == ["the-older-one", "INVALID", "-", "321.5", "samples/s", "-", "p_core"]
    failed = flagbench("results ls --json").json["records"][0]
    assert (failed["exit_code"], failed["reason"]) == (4, "a rank died")


def test_ls_on_80_columns_has_short_id_verdict_speed_host(
    store: Store, flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = json.loads(REPLAY.read_bytes())
    whole = "20260101T000000Z-distilbert-a100-cuda11.6-1x8-0a1b2c3d"
    store.put(json.dumps({**record, "record_id": whole}).encode())
    monkeypatch.setenv("COLUMNS", "80")
    header, row, _ = render([listing(with_verdicts(store, store.list_records()))], Terminal()).splitlines()
    assert header.split()[:5] == ["RECORD", "VERDICT", "RATIO", "SPEED", "HOST"]
    assert row.split()[:6] == ["0a1b2c3d", "REPRODUCED", "1.000", "1943", "samples/s", "machine"]
    assert max(len(header), len(row)) <= 80
    assert whole in flagbench("results ls").out
    assert flagbench("results show --json 0a1b2c3d").json["record_id"] == whole
    assert flagbench("verify 0a1b2c3d").code == 0


def test_ls_shortens_no_id_to_digits_of_two(
    store: Store, flagbench: Flagbench, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in ("20260101", "20260102"):
        store.put(make_record(record_id=f"{day}T000000Z-distilbert-cpu-1x1-11111111"))
    monkeypatch.setenv("COLUMNS", "80")
    shown = render([listing(with_verdicts(store, store.list_records()))], Terminal())
    assert shown.count("-distilbert-cpu-1x1-11111111") == 2
    ended = flagbench("results show 11111111")
    assert ended.code == ExitCode.USAGE
    assert "'11111111' fits 2 ids" in ended.err


@pytest.mark.parametrize(
    ("state", "code", "shown"),
    [
        ("failed", ExitCode.RANK_FAILED, "FAILED"),
        ("failed", ExitCode.OUT_OF_MEMORY, "OUT OF MEMORY"),
        ("failed", ExitCode.TIMEOUT, "TIMEOUT"),
        ("interrupted", ExitCode.INTERRUPTED, "INTERRUPTED"),
        ("failed", ExitCode.INVALID, "INVALID"),
    ],
)
def test_a_run_that_did_not_end_by_itself_shows_how_it_ended(
    store: Store,
    flagbench: Flagbench,
    make_record: MakeRecord,
    tmp_path: Path,
    state: str,
    code: ExitCode,
    shown: str,
) -> None:
    status = {"state": state, "phase": "train", "reason": "it ended", "remedy": None, "exit_code": int(code)}
    store.put(make_record(record_id="the-only-one", status=status))
    row = flagbench("results ls").out.splitlines()[1]
    assert row.startswith(f"the-only-one  {shown}  ")
    headline = f"FAILED (exit {code})" if shown == "FAILED" else shown
    verified = flagbench(f"verify the-only-one --explain --junit {tmp_path / 'junit.xml'}")
    assert (verified.code, verified.out.partition(":")[0]) == (ExitCode.INVALID, headline)
    assert f"<system-out>{headline}</system-out>" in (tmp_path / "junit.xml").read_text(encoding="utf-8")
    document = json.loads(flagbench("verify the-only-one --json").out)
    assert (document["verdict"], document["exit_code"]) == ("INVALID", ExitCode.INVALID)
    ended = None if shown == "INVALID" else {"state": shown, "exit_code": code}
    assert document.get("ended") == ended
    flagbench(f"report --out {tmp_path}")
    index = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert re.search(f'<strong class="(bad|doubt)">{shown}</strong>', index)
    page = (tmp_path / "record-the-only-one.html").read_text(encoding="utf-8")
    assert f"<strong>{headline}</strong>" in page


def test_ls_shows_the_speed_that_the_ratio_is_of(store: Store, flagbench: Flagbench) -> None:
    measured = Path(__file__).parents[4] / "docs" / "measured"
    store.put((measured / "h100-roofs-mamf-bf16.json").read_bytes())
    row = flagbench("results ls").out.splitlines()[1].split()
    assert row[2:5] == ["0.994", "790.1", "TFLOP/s"]
    assert "mamf_bf16" in row


def test_a_limited_listing_remembers_its_verdicts(filled: Store, flagbench: Flagbench) -> None:
    assert flagbench("results ls --limit 1").code == 0
    newest, other = filled.list_records()
    assert (newest.summary.verdict, other.summary.verdict) == ("INVALID", None)
    assert "1 of 2 records" in flagbench("results ls --limit 1").err
    assert "records" not in flagbench("results ls --limit 2").err


def test_an_interrupted_listing_keeps_its_verdicts(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    read_all = filled.read_all

    def interrupted(entries: list[StoredRecord]) -> Iterator[object]:
        yield next(read_all(entries))
        raise KeyboardInterrupt

    monkeypatch.setattr(filled, "read_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        with_verdicts(filled, filled.list_records())
    assert [entry.summary.verdict for entry in filled.list_records()] == ["INVALID", None]


def test_what_no_row_of_this_device_is_of_has_no_verdict(store: Store, flagbench: Flagbench) -> None:
    store.put((ROWS / "run-roofs-2.json").read_bytes())
    (listed,) = flagbench("results ls --json").json["records"]
    assert (listed["state"], listed["verdict"]) == ("ok", None)


@pytest.mark.parametrize(
    ("without", "shown", "verdict"),
    [
        ("p_core", "1943 samples/s", "REPRODUCED"),
        ("p_core_host", "1945 samples/s", "REPRODUCED"),
    ],
)
def test_ls_shows_the_metric_that_decided(
    store: Store, flagbench: Flagbench, without: str | None, shown: str, verdict: str
) -> None:
    record = json.loads(REPLAY.read_bytes())
    record["metrics"] = [metric for metric in record["metrics"] if metric["name"] != without]
    store.put(json.dumps(record).encode())
    row = flagbench("results ls --wide").out.splitlines()[1]
    assert f"  {shown}" in row
    assert row.split()[1] == verdict


@pytest.mark.parametrize(
    ("options", "listed"),
    [
        ("--stack a100", ["the-newer-one"]),
        ("--limit 1", ["the-newer-one"]),
        (f"--limit {10**30}", ["the-newer-one", "the-older-one"]),
        ("--state failed", ["the-newer-one"]),
        ("--since 2026-01-02", ["the-newer-one"]),
        ("--case glm", []),
    ],
)
def test_ls_filters_and_limits(filled: Store, flagbench: Flagbench, options: str, listed: list[str]) -> None:
    shown = flagbench(f"results ls --json {options}").json
    assert (shown["store"], [entry["record_id"] for entry in shown["records"]]) == (filled.url, listed)


@pytest.mark.parametrize("command", ["ls --stack", "rm --yes --case"])
def test_an_empty_name_is_an_unknown_one(filled: Store, flagbench: Flagbench, command: str) -> None:
    ended = flagbench(f"results {command}", "")
    assert (ended.code, ended.out) == (ExitCode.USAGE, "")
    assert len([*filled.list_records()]) == 2


def test_ls_shows_a_damaged_record_as_damaged(filled: Store, flagbench: Flagbench) -> None:
    path = Path(next(filled.list_records()).location)
    path.write_bytes(path.read_bytes().replace(b"a rank died", b"all is well"))
    newer, older = flagbench("results ls --json").json["records"]
    assert newer["state"] is None
    assert "checksum" in newer["error"]
    assert older["metrics"] == {"p_core": 321.5}
    assert flagbench("results show last").code == ExitCode.DATA


def test_show_says_how_a_run_ended_and_what_it_measured(filled: Store, flagbench: Flagbench) -> None:
    facts = dict(line.split(maxsplit=1) for line in flagbench("results show").out.splitlines() if line)
    assert facts["status"].split()[0] == "failed"
    assert (facts["reason"], facts["fix"]) == ("a rank died", "look")
    text = flagbench("results show the-older-one").out
    assert "318 to 325 (block bootstrap, within-run)" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["driver", "unknown"] in rows
    assert ["recompute", "false"] in rows
    assert ["loss_finite", "ok", "200", "of", "200", "steps"] in rows


def test_show_says_why_a_metric_has_no_interval(store: Store, flagbench: Flagbench, make_record: MakeRecord) -> None:
    why = "the window of 20 steps is shorter than 100; about 80 more steps would decide"
    metric = {"name": "p_core", "value": 321.5, "unit": "samples/s", "scope": "job", "ci_reason": why}
    store.put(make_record(metrics=[metric]))
    assert why in flagbench("results show").out


def test_show_has_the_measured_bubble_beside_the_predicted_one(
    store: Store, flagbench: Flagbench, make_record: MakeRecord
) -> None:
    training = {
        "updates": 40,
        "predicted_bubble": 0.2,
        "measured_bubble": 0.25,
        "measured_bubble_of_stages": [0.2, 0.3],
    }
    store.put(make_record(quality={"checks": [], "training": training}))
    lines = flagbench("results show").out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("measured_bubble "))
    assert [line.split(maxsplit=1) for line in lines[at : at + 3]] == [
        ["measured_bubble", "0.25"],
        ["measured_bubble_of_stages", "0.2, 0.3"],
        ["predicted_bubble", "0.2"],
    ]


def test_a_record_cannot_forge_a_line_of_the_terminal(
    store: Store, make_record: MakeRecord, flagbench: Flagbench
) -> None:
    hostile = "x\x1b[2J\x9b31m\u202eOWNED\nstatus   ok"
    status = {"state": "failed", "phase": "train", "reason": hostile, "remedy": hostile, "exit_code": 4}
    checks = [{"name": hostile, "ok": False, "detail": hostile}]
    metrics = [{"name": "p_core", "value": 1.0, "unit": hostile, "scope": "job", "note": hostile}]
    conditions = {"driver": hostile, hostile: 1}
    store.put(make_record(status=status, quality={"checks": checks}, metrics=metrics, conditions=conditions))
    text = flagbench("results show").out
    assert r"reason   x\x1b[2J\x9b31m\u202eOWNED\nstatus   ok" in text
    assert all(line.isprintable() for line in text.splitlines())
    assert "status   ok" not in text.splitlines()


def test_show_json_is_the_stored_record(filled: Store, make_record: MakeRecord, flagbench: Flagbench) -> None:
    shown = flagbench("results show the-older-one --json").out
    assert shown.encode() == make_record(record_id="the-older-one") + b"\n"


def test_an_empty_store(store: Store, flagbench: Flagbench) -> None:
    assert store.url in flagbench("results ls").out
    assert flagbench("results ls --json").json == {"store": store.url, "records": []}
    ended = flagbench("results show last")
    assert (ended.code, "flagbench run" in ended.err) == (ExitCode.DATA, True)
