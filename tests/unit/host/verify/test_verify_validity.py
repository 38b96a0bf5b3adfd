"""A doctored record is reported as INVALID wherever it is compared, on either side."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from catalogs import CATALOG
from flagbench.cli import main
from flagbench.errors import ExitCode
from flagbench.record.model import Record
from flagbench.record.read import read_record
from flagbench.verify import Verdict, compare_records, verify_baseline, verify_claim
from flagbench.verify.validity import examine
from honest import CLAIMS, Pace, honest_record

CLAIM = CLAIMS["distilbert/a100-1x8-fp32"]
CASE = CATALOG.cases["distilbert"]


@pytest.fixture
def _numbers_are_proved() -> None:
    """Here they are not: see conftest.py."""


@pytest.fixture
def _parts_may_disagree() -> None:
    """Here they may not: see conftest.py."""


@cache
def _made(name: str) -> str:
    day = 1 + len(name)
    other = {"record_id": name, "run_id": name, "created_at": f"2026-02-{day:02}T12:00:00Z"}
    return json.dumps(honest_record(CLAIM, Pace(noise=0.01, seed=day), **other))


def as_is(raw: dict[str, Any]) -> None:
    """Not doctored."""


def made(name: str, edit: Callable[[dict[str, Any]], object] = as_is) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(_made(name))
    edit(raw)
    return raw


def read(raw: dict[str, Any]) -> Record:
    return read_record(json.dumps(raw).encode())


def faster(raw: dict[str, Any]) -> None:
    for metric in raw["metrics"]:
        if metric["name"].startswith("p_core"):
            metric["value"] *= 1.05
            metric["ci95"] = [bound * 1.05 for bound in metric["ci95"]]


def another_device(raw: dict[str, Any]) -> None:
    raw["conditions"]["device_model"] = "NVIDIA A800"


def without_a_check(raw: dict[str, Any]) -> None:
    raw["quality"]["checks"] = [check for check in raw["quality"]["checks"] if check["name"] != "loss_finite"]


def too_much_memory(raw: dict[str, Any]) -> None:
    raw["telemetry"] = {"devices": [{"mem_used_max_bytes": 2**41}]}


DOCTORED = pytest.mark.parametrize("edit", [faster, another_device, without_a_check, too_much_memory])


@DOCTORED
def test_a_claim_and_a_baseline_refuse_it(edit: Callable[[dict[str, Any]], None]) -> None:
    doctored, other = read(made("fixture-doctored", edit)), read(made("fixture-honest"))
    assert verify_claim([doctored], CLAIM, CASE).verdict is Verdict.INVALID
    assert verify_baseline([doctored], [other], CASE).verdict is Verdict.INVALID
    with pytest.raises(Exception, match="the baseline cannot be used: record fixture-doctored") as caught:
        verify_baseline([other], [doctored], CASE)
    assert caught.value.code is ExitCode.DATA


@DOCTORED
def test_a_comparison_reports_it_and_has_no_ratio(edit: Callable[[dict[str, Any]], None]) -> None:
    doctored, other = read(made("fixture-doctored", edit)), read(made("fixture-honest"))
    for a, b, label in ((doctored, other, "A"), (other, doctored, "B")):
        found = compare_records(a, b, CASE)
        assert found.exit_code is ExitCode.INVALID
        assert found.problems
        assert all(problem.startswith(f"{label}: ") for problem in found.problems)
        assert not any(metric.ratio for metric in found.metrics)


def test_two_honest_records_are_compared() -> None:
    found = compare_records(read(made("fixture-honest")), read(made("fixture-another")), CASE)
    assert (found.exit_code, found.problems) == (ExitCode.OK, ())
    assert next(metric for metric in found.metrics if metric.name == "p_core").ratio


def test_a_comparison_shows_numbers_as_the_evidence_gives_them() -> None:
    def p_core(name: str, edit: Callable[[dict[str, Any]], None] = as_is) -> float:
        found = compare_records(read(made(name, edit)), read(made("fixture-another")), CASE)
        return next(metric.a.value for metric in found.metrics if metric.name == "p_core" and metric.a)

    assert p_core("fixture-honest", faster) == p_core("fixture-honest")


def test_a_record_without_evidence_is_compared_and_said_to_prove_nothing() -> None:
    old = made("fixture-honest", lambda raw: (raw.pop("evidence"), raw.pop("evidence_digest")))
    found = compare_records(read(old), read(made("fixture-another")), CASE)
    assert found.exit_code is ExitCode.INCONCLUSIVE
    (problem,) = found.problems
    assert problem.startswith("A: no evidence")
    old["evidence_reason"] = "it was too large"
    assert compare_records(read(old), read(made("fixture-another")), CASE).problems[0].endswith("it was too large")


def test_a_copy_under_another_id_is_the_same_run() -> None:
    copy = made("fixture-honest", lambda raw: raw.update(record_id="fixture-copy"))
    (problem,) = compare_records(read(made("fixture-honest")), read(copy), CASE).problems
    assert problem == "A and B count as one run: both have the run_id fixture-honest"


@pytest.mark.parametrize("option", ["", "--json"])
def test_the_command_ends_as_verify_does(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for name, edit in (("honest", as_is), ("another", as_is), ("doctored", faster)):
        files.append(str(tmp_path / f"{name}.json"))
        Path(files[-1]).write_text(json.dumps(made(f"fixture-{name}", edit)))
    assert main.run(["compare", *files[:2], *option.split()]) == ExitCode.OK
    capsys.readouterr()
    assert main.run(["compare", files[0], files[2], *option.split()]) == ExitCode.INVALID
    out = capsys.readouterr().out
    assert "B: metric p_core is " in out
    if option:
        assert json.loads(out)["exit_code"] == ExitCode.INVALID


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seconds": 99.0}, "its evaluations took 99 s, but timing.eval is"),
        ({"seconds": 99.0, "epoch": -1}, "its evaluations took 99 s, but timing.eval_initial is 0 s"),
        ({"steps": 999}, "an evaluation followed step 999, but one before it 0, and training ended with 120"),
        ({"steps": -1}, "an evaluation followed step -1"),
    ],
)
def test_evaluations_fit_into_training(changes: dict[str, Any], words: str) -> None:
    raw = made("fixture-honest", lambda raw: raw["quality"]["evaluations"][0].update(changes))
    assert words in "; ".join(examine(read(raw), CASE).problems)


def test_evaluations_are_in_the_order_of_their_steps() -> None:
    raw = made("fixture-honest")
    (one,) = raw["quality"]["evaluations"]
    raw["quality"]["evaluations"] = [{**one, "steps": 60, "seconds": 0.0}, one]
    assert examine(read(raw), CASE).problems == ()
    raw["quality"]["evaluations"].reverse()
    assert "followed step 60, but one before it 120" in "; ".join(examine(read(raw), CASE).problems)
