"""`verify --explain` of real runs: what was planted in them comes first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from catalogs import CATALOG
from faults import slow_loader, slow_rank
from flagbench.explain import Explanation, explain
from flagbench.record.model import Record
from flagbench.record.read import read_record
from flagbench.verify import verify_baseline
from running import run_case

pytestmark = pytest.mark.image

CASE = CATALOG.cases["distilbert"]
DELAY = 0.1
"""Seconds per step, several times what a step takes: other tests run on the same processors."""


def run(folder: Path, **environment: str) -> Record:
    folder.mkdir(exist_ok=True)
    ended = run_case(str(folder), *("--gpus", "2", "--preset", "tiny", "--steps", "20"), env=environment)
    return read_record(json.dumps(ended.record).encode())


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return run(tmp_path_factory.mktemp("healthy"))


def explained(record: Record, healthy: Record) -> Explanation:
    return explain([record], verify_baseline([record], healthy, CASE), CASE, [healthy])


def test_a_loader_that_sleeps(tmp_path: Path, healthy: Record) -> None:
    found = explained(run(tmp_path / "run", **slow_loader(tmp_path, "distilbert", DELAY)), healthy)
    first = found.causes[0]
    assert (found.metric, first.name) == ("p_train", "data_wait")
    assert (first.gap or 0.0) > 0.2
    assert "per step for its next batch" in first.seen


def test_a_slow_rank(tmp_path: Path, healthy: Record) -> None:
    found = explained(run(tmp_path / "run", **slow_rank(tmp_path, 1, DELAY)), healthy)
    first = found.causes[0]
    assert first.name == "straggler"
    assert first.seen.startswith("rank 1 (node 0, ")


def test_every_rank_says_how_long_it_waited_for_a_processor(healthy: Record) -> None:
    assert all(rank.processor_seconds and rank.processor_wait_seconds is not None for rank in healthy.ranks)
    assert healthy.telemetry is not None
