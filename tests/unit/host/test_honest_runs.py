"""How tests/bench/honest_runs.py judges runs: sound records are no problem, and doctored ones and failed runs are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.honest_runs import Judge
from bench.honest_trials import NATIVE, QUIET, Trial
from catalogs import CATALOG

RECORDS = Path(__file__).parents[2] / "replay" / "records"


def stored(folder: Path, name: str, **changes: Any) -> Path:
    """The folder of a run that left a replayed record."""
    record = {**json.loads((RECORDS / f"{name}.json").read_text()), **changes}
    place = folder / "store" / "results" / "v1"
    place.mkdir(parents=True)
    (place / f"{record['record_id']}.json").write_text(json.dumps(record))
    (folder / "log").write_text("flagbench: done\n")
    return folder


def trial(number: int) -> Trial:
    return Trial(number, "distilbert", NATIVE, QUIET, ())


def test_sound_records_are_held_against_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judge = Judge(CATALOG)
    for number, name in enumerate(("run-distilbert-1", "run-distilbert-2")):
        assert judge.trial(trial(number), stored(tmp_path / name, name), [0]) == 1
    assert judge.problems == []
    assert set(judge.verdicts) == {"a claim", "itself as a claim", "an earlier run"}
    assert capsys.readouterr() == ("", "")


def test_a_doctored_record_is_a_problem(tmp_path: Path) -> None:
    judge = Judge(CATALOG)
    judge.trial(trial(0), stored(tmp_path / "run", "run-distilbert-1", preset="reference"), [0])
    assert any("INVALID" in problem for problem in judge.problems)


def test_a_run_that_failed_is_one_problem(tmp_path: Path) -> None:
    judge = Judge(CATALOG)
    judge.trial(trial(0), stored(tmp_path / "run", "run-distilbert-1"), [4])
    assert judge.problems == ["0000-distilbert: ended with [4]: flagbench: done"]
