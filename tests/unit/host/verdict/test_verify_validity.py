"""A doctored record is reported as INVALID wherever it is compared, on either side."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flagbench.cli import main
from flagbench.errors import FlagbenchError
from flagbench.records.model import Record
from flagbench.verdict import Verdict, compare_records, verify_baseline, verify_claim
from flagbench.verdict.compare import Comparison
from flagbench.verdict.validity import examine
from flagbench_core.exit_codes import ExitCode

from .conftest import CASE, CLAIM, Raw, made, read

TESTED = "records"


def faster(raw: Raw) -> None:
    for metric in raw["metrics"]:
        if metric["name"].startswith("p_core"):
            metric.update(value=metric["value"] * 1.05, ci95=[bound * 1.05 for bound in metric["ci95"]])


def another_device(raw: Raw) -> None:
    raw["conditions"]["device_model"] = "NVIDIA A800"


def without_a_check(raw: Raw) -> None:
    raw["quality"]["checks"] = [check for check in raw["quality"]["checks"] if check["name"] != "loss_finite"]


def too_much_memory(raw: Raw) -> None:
    raw["telemetry"] = {"devices": [{"mem_used_max_bytes": 2**41}]}


def edited(edit: Callable[[Raw], object] = lambda raw: None, **fields: Any) -> Record:
    raw = made(run="fixture-edited", seed=1, **fields)
    edit(raw)
    return read(raw)


OTHER = read(made(run="fixture-other", seed=2))


def compared(record: Record) -> Comparison:
    return compare_records(record, OTHER, CASE)


@pytest.mark.parametrize("edit", [faster, another_device, without_a_check, too_much_memory])
def test_a_doctored_record_is_invalid_on_either_side(edit: Callable[[Raw], None]) -> None:
    doctored = edited(edit)
    assert verify_claim([doctored], CLAIM, CASE).verdict is Verdict.INVALID
    assert verify_baseline([doctored], [OTHER], CASE).verdict is Verdict.INVALID
    with pytest.raises(FlagbenchError, match="fixture-edited") as caught:
        verify_baseline([OTHER], [doctored], CASE)
    assert caught.value.code is ExitCode.DATA
    for a, b, label in ((doctored, OTHER, "A"), (OTHER, doctored, "B")):
        found = compare_records(a, b, CASE)
        assert (found.exit_code, bool(found.problems)) == (ExitCode.INVALID, True)
        assert all(problem.startswith(f"{label}: ") for problem in found.problems)
        assert not any(metric.ratio for metric in found.metrics)


def test_a_comparison_shows_numbers_as_the_evidence_gives_them() -> None:
    assert any(metric.ratio for metric in compared(edited()).metrics)
    assert [m.a and m.a.value for m in compared(edited(faster)).metrics] == [
        m.a and m.a.value for m in compared(edited()).metrics
    ]


def test_a_record_without_evidence_proves_nothing() -> None:
    found = compared(edited(lambda raw: (raw.pop("evidence"), raw.pop("evidence_digest"))))
    assert found.exit_code is ExitCode.INCONCLUSIVE
    (problem,) = found.problems
    assert problem.startswith("A: no evidence")
    large = edited(lambda raw: (raw.pop("evidence"), raw.update(evidence_reason="it was too large")))
    assert compared(large).problems[0].endswith("it was too large")


def test_a_copy_under_another_id_is_the_same_run() -> None:
    copy = edited(lambda raw: raw.update(record_id="fixture-copy"))
    (problem,) = compare_records(edited(), copy, CASE).problems
    assert "run_id fixture-edited" in problem


@pytest.mark.parametrize("option", ["", "--json"])
def test_the_command_ends_as_verify_does(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(tmp_path / name) for name in ("sound.json", "other.json", "doctored.json")]
    for file, record in zip(files, (edited(), OTHER, edited(faster)), strict=True):
        Path(file).write_text(json.dumps(record.raw))
    assert main.run(["compare", *files[:2], *option.split()]) == ExitCode.OK
    capsys.readouterr()
    assert main.run(["compare", *files[1:], *option.split()]) == ExitCode.INVALID
    out = capsys.readouterr().out
    assert "B: metric p_core is " in out
    assert not option or json.loads(out)["exit_code"] == ExitCode.INVALID


def test_evaluations_are_in_the_order_of_their_steps() -> None:
    raw = made()
    (last,) = raw["quality"]["evaluations"]
    raw["quality"]["evaluations"] = [{**last, "steps": 60, "seconds": 0.0}, last]
    assert examine(read(raw), CASE).problems == ()
    raw["quality"]["evaluations"].reverse()
    (problem, *_) = examine(read(raw), CASE).problems
    assert ("60" in problem, "130" in problem) == (True, True)
