"""REFERENCE: a run of a case without claims beside a row that is only cited, wherever a verdict is shown."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from flagbench.history import verdicts
from flagbench.records.store import Store
from flagbench.runs.launchers import LaunchResult
from flagbench.runs.launchers.docker import DockerLauncher
from flagbench_core.exit_codes import ExitCode
from unit.host.conftest import ROOT, Edit, Flagbench

pytestmark = pytest.mark.usefixtures("only_cited")
RECORD = ROOT / "docs" / "measured" / "h100-llama3.1-8b-lora.json"
HEAT = "a window of 21.9 s is too short to see heat: --steps 4 takes 44 s"
"""The record has two steps of 10.9 s."""
FIRST_LINE = f"REFERENCE 0.96 of 12,473 tokens/s (cited, no verdict; {HEAT})"
SAYS_LESS = "99,llama3-8b,lora,bf16,H100,h100-sxm,1,1,,,,,tokens_per_second_per_device,14000,tokens/s,,a table,\n"
"""A row that could be of the same work, and does not say so."""


def changed(tmp_path: Path, section: str, **changes: str) -> str:
    """A copy of the record with other values in a section."""
    raw = json.loads(RECORD.read_text(encoding="utf-8"))
    raw[section].update(changes)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(raw), encoding="utf-8")
    return str(path)


def test_verify_says_it_first_and_exits_with_11(flagbench: Flagbench) -> None:
    ended = flagbench("verify", str(RECORD))
    assert (ended.code, ended.out.splitlines()[0], ended.err) == (ExitCode.INCONCLUSIVE, FIRST_LINE, "")
    assert "NVIDIA-NeMo/Automodel" in ended.out


def test_verify_json_has_the_cited_row(flagbench: Flagbench) -> None:
    document = json.loads(flagbench("verify --json", str(RECORD)).out)
    assert (document["verdict"], document["exit_code"]) == ("REFERENCE", 11)
    assert document["against"] == {"kind": "cited row", "id": "automodel/11", "chosen": True}
    (row,) = document["cited"]
    assert (row["id"], row["value"], row["unit"]) == ("automodel/11", 12472.87, "tokens/s")
    assert row["ratio"]["value"] == document["metrics"][0]["ratio"]["value"] == pytest.approx(0.961, abs=5e-4)


def test_of_several_rows_the_nearest_is_first(flagbench: Flagbench, only_cited: Path) -> None:
    """The nearest states most of what the run did, wherever it stands in the catalogue."""
    catalogue = only_cited / "catalogue" / "automodel.csv"
    head, separator, rows = catalogue.read_text(encoding="utf-8").partition("conditions\n")
    catalogue.write_text(head + separator + SAYS_LESS + rows, encoding="utf-8")
    ended = flagbench("verify", str(RECORD))
    assert ended.out.splitlines()[0] == FIRST_LINE
    cited = [line for line in ended.out.splitlines() if line.startswith("cited row")]
    assert [line.partition(":")[0] for line in cited] == [
        "cited row automodel/11, 0.96 of 12,473 tokens/s",
        "cited row automodel/99, 0.86 of 14,000 tokens/s",
    ]


def test_a_run_that_failed_is_invalid(flagbench: Flagbench, tmp_path: Path) -> None:
    ended = flagbench("verify", changed(tmp_path, "status", state="failed"))
    assert (ended.code, ended.out.partition(" ")[0]) == (ExitCode.INVALID, "FAILED")
    assert "the cited row automodel/11" not in ended.out.splitlines()[0]


def test_a_number_that_does_not_follow_is_invalid(flagbench: Flagbench, tmp_path: Path) -> None:
    raw = json.loads(RECORD.read_text(encoding="utf-8"))
    for metric in raw["metrics"]:
        if metric["name"] == "tokens_per_second_per_device_host":
            metric["value"] = 12_400.0
    (tmp_path / "faster.json").write_text(json.dumps(raw), encoding="utf-8")
    assert flagbench("verify", str(tmp_path / "faster.json")).code == ExitCode.INVALID


def test_without_a_row_of_the_device_there_is_no_reference(flagbench: Flagbench, tmp_path: Path) -> None:
    ended = flagbench("verify", changed(tmp_path, "conditions", device_model="NVIDIA H200"))
    assert (ended.code, ended.out) == (ExitCode.USAGE, "")
    assert "there is no claim of the case llama3.1-8b-lora" in ended.err


def test_a_listing_and_pages_show_it(flagbench: Flagbench, store: Store, tmp_path: Path) -> None:
    store.put(RECORD.read_bytes())
    (listed,) = flagbench("results ls --json").json["records"]
    assert (listed["verdict"], listed["claim"]) == ("REFERENCE", None)
    assert "REFERENCE" in flagbench("results ls").out
    assert flagbench("report --out", str(tmp_path / "pages")).code == ExitCode.OK
    page = (tmp_path / "pages" / f"record-{listed['record_id']}.html").read_text(encoding="utf-8")
    assert f"REFERENCE</strong>{FIRST_LINE.removeprefix('REFERENCE')}</p>" in page
    assert "1 REFERENCE" in (tmp_path / "pages" / "index.html").read_text(encoding="utf-8")


def test_a_listing_follows_the_catalogue(flagbench: Flagbench, store: Store, only_cited: Path, edit: Edit) -> None:
    store.put(RECORD.read_bytes())
    listed = []
    for task in ("lora", "other"):
        edit(only_cited / "catalogue" / "automodel.csv", "11,llama3-8b,lora,", f"11,llama3-8b,{task},")
        verdicts._basis_of.cache_clear()
        listed.append(flagbench("results ls --json").json["records"][0]["verdict"])
    verdicts._basis_of.cache_clear()
    assert listed == ["REFERENCE", None]


def test_a_run_shows_it_and_keeps_its_status(
    flagbench: Flagbench, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(step=100)
    monkeypatch.setattr("flagbench.runs.launchers.launch_time.elapsed", lambda: next(clock))
    monkeypatch.setattr("flagbench.runs.launchers.launch_time.utc_now", lambda: "2026-11-26T11:56:15Z")
    monkeypatch.setattr(DockerLauncher, "launch", lambda self, request: LaunchResult(RECORD.read_bytes(), 0))
    ended = flagbench("run llama3.1-8b-lora:cuda13 --via docker")
    assert (ended.code, ended.out.splitlines()[0]) == (ExitCode.OK, FIRST_LINE)


def test_what_disturbed_the_run_qualifies_it(flagbench: Flagbench, tmp_path: Path) -> None:
    raw = json.loads(RECORD.read_text(encoding="utf-8"))
    raw["telemetry"]["devices"][0]["throttle_seconds"]["hw_thermal_slowdown"] = 30.0
    (tmp_path / "hot.json").write_text(json.dumps(raw), encoding="utf-8")
    ended = flagbench("verify", str(tmp_path / "hot.json"))
    qualified = FIRST_LINE.removesuffix(")") + "; throttled 30 s (hw_thermal_slowdown))"
    assert (ended.code, ended.out.splitlines()[0]) == (ExitCode.INCONCLUSIVE, qualified)
