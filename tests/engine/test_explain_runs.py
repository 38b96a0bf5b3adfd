"""`verify --explain` of real runs: what was planted in them is found, with its time."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from catalogs import CATALOG
from faults import slow_rank
from flagbench.records.model import Record
from flagbench.records.read import read_record
from flagbench.verdict import verify_claim
from flagbench.verdict.explain import Cause, explain
from flagbench.verdict.stall import find_counted_time, find_stall
from flagbench_core.case_kinds import TRAIN
from flagbench_core.evidence.document import WINDOW, read_evidence
from running import run_case

pytestmark = pytest.mark.image

CASE = CATALOG.cases["distilbert"]
DELAY = 0.1
"""Seconds per step, several times what a step takes."""


def run(folder: Path, **environment: str) -> Record:
    folder.mkdir(exist_ok=True)
    ended = run_case(str(folder), *("--gpus", "2", "--preset", "tiny", "--steps", "20"), env=environment)
    return read_record(json.dumps(ended.record).encode())


def causes(record: Record) -> dict[str, Cause]:
    """By name, the causes of a run that is compared with nothing: other tests make any two runs differ."""
    result = verify_claim([record], CATALOG.claims["distilbert/a100-1x8-fp32"], CASE)
    return {cause.name: cause for cause in explain([record], result, CASE).causes}


def milliseconds(cause: Cause) -> float:
    """The first time that a cause shows."""
    return float(re.findall(r"([\d.e+]+) ms", cause.seen)[0])


def test_a_step_that_stalls(tmp_path: Path) -> None:
    record = run(tmp_path / "run", **slow_rank(tmp_path, 1, 3.0, step=24))
    window = read_evidence(record.raw["evidence"]).step_range(TRAIN, WINDOW)
    found = find_stall(window, *find_counted_time("p_core", window))
    assert found is not None
    assert (found.first, found.last, found.rank, found.column) == (25, 25, 1, "device")
    assert found.seconds >= 3.0
    assert causes(record)["stall"].time == pytest.approx(found.share, rel=0.2)


def test_a_slow_rank(tmp_path: Path) -> None:
    record = run(tmp_path / "run", **slow_rank(tmp_path, 1, DELAY))
    found = causes(record)["straggler"]
    assert "rank 1 " in found.seen
    assert milliseconds(found) >= 0.5e3 * DELAY
    assert all(rank.processor_seconds and rank.processor_wait_seconds is not None for rank in record.ranks)
