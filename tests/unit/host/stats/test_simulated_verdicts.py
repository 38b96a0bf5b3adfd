"""The simulation of `make bench`, drawn a few times: every line is printed, and none misses by more than chance."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench" / "verdicts.py"


def test_no_criterion_misses(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("numpy")
    monkeypatch.setattr(sys, "argv", [str(BENCH), "--quick"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(BENCH), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert ended.value.code == 0, [line for line in lines if "MISSED" in line]
    for words in (
        "coverage, AR(1) 0.8",
        "windows refused, iid",
        "wrong verdicts at 0.945",
        "false alarms, 1 v 1",
        "2 % slower found",
    ):
        assert any(words in line for line in lines)


def test_a_criterion_that_misses_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("numpy")
    report = runpy.run_path(str(BENCH))["Report"](quick=True)
    report.line("coverage", "iid", 0.97, 0.9, 1000, least=True)
    report.line("coverage", "drift", 0.5, 0.9, 1000, least=True)
    report.line("false alarms", "spread 1%", 0.051, 0.05, 1000)  # by less than chance
    report.line("false alarms", "spread 2%", 0.049, 0.05, 1000)
    assert report.failed == 1
    (missed,) = (line for line in capsys.readouterr().out.splitlines() if "MISSED" in line)
    assert "drift" in missed
    assert [row.split("|")[2:4] for row in report.table().splitlines()[2:]] == [
        [" 0.500 ", " drift "],
        [" 0.051 ", " spread 1% "],
    ]
