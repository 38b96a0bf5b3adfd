"""A store of records made by commit 08a01ae keeps the verdicts that 08a01ae gave.

`08a01ae/store` has each case run natively, distilbert in a container (200 steps), a series of three runs, a
reproduction, a failed and an interrupted run, all of the tiny presets on a processor; `08a01ae/reproduced.tar.gz` is
the bundle of the reproduction. `08a01ae/verdicts.json` has what `flagbench verify` said of them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from flagbench.cli import main
from flagbench.manifests import load

HERE = Path(__file__).parent / "08a01ae"
EXPECTED = json.loads((HERE / "verdicts.json").read_text(encoding="utf-8"))


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the answer of a command with --json."""
    code = main.run([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A copy of the store."""
    return Path(shutil.copytree(HERE / "store", tmp_path / "store"))


@pytest.mark.parametrize("expected", EXPECTED, ids=lambda expected: " ".join(expected["verify"]))
def test_stored_records_keep_their_verdict(
    expected: dict[str, Any], stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, result = run(capsys, "verify", *expected["verify"], "--store", str(stored))
    assert {
        "verify": expected["verify"],
        "exit_code": code,
        "verdict": result["verdict"],
        "qualifiers": result["qualifiers"],
        "against": result["against"]["id"],
        "metrics": {metric["name"]: metric["verdict"] for metric in result["metrics"]},
        "ratios": {metric["name"]: metric["ratio"]["value"] for metric in result["metrics"] if metric["ratio"]},
    } == expected


@pytest.mark.parametrize("expected", EXPECTED[:13], ids=lambda expected: expected["verify"][0])
def test_records_of_a_newer_image_keep_their_verdict(
    expected: dict[str, Any], stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = stored.rglob(f"{expected['verify'][0]}.json")
    record = json.loads(path.read_bytes())
    record["metrics"].append({"name": "step_slowest", "value": 0.5, "unit": "s", "scope": "job"})
    for section in ("timing", "window", "work", "flops"):
        if record[section]:
            record[section]["new"] = 1.5
    path.write_text(json.dumps({**record, "new": {}}), encoding="utf-8")
    code, result = run(capsys, "verify", str(path), "--store", str(stored))
    assert (code, result["verdict"]) == (expected["exit_code"], expected["verdict"])
    if result["verdict"] != "INVALID":
        names = {"metric step_slowest", "timing.new", "window.new", "work.new", "flops.new"}
        assert names <= set(result["not_compared"])


def test_a_check_that_the_case_has_since_is_not_compared(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    manifests = shutil.copytree(load.manifests_root(), tmp_path / "manifests")
    case = manifests / "cases" / "glm.yaml"
    case.write_text(case.read_text(encoding="utf-8").replace("[precision,", "[since, precision,"), encoding="utf-8")
    monkeypatch.setenv("FLAGBENCH_MANIFESTS", str(manifests))
    expected = next(each for each in EXPECTED if each["verdict"] == "INCONCLUSIVE")
    code, result = run(capsys, "verify", *expected["verify"], "--store", str(stored))
    assert (code, result["verdict"]) == (expected["exit_code"], "INCONCLUSIVE")
    assert "check since" in result["not_compared"]


def test_every_stored_record_is_listed(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, listed = run(capsys, "results", "ls", "--store", str(stored))
    assert code == 0
    assert len(listed["records"]) == len(list(stored.rglob("results/v1/*/*/*/*.json")))


def test_a_bundle_keeps_its_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    code, result = run(capsys, "bundle", "verify", str(HERE / "reproduced.tar.gz"))
    assert (code, result["ok"], result["verdict"]["verdict"]) == (0, True, "NOT_COMPARABLE")
