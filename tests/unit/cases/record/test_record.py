"""The record: valid and printable whatever was left behind, and honest about what does not hold."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flagbench_cases.record import assemble, time_of_day
from flagbench_cases.record.evidence import NOTHING, Evidence, Outcome, read_spool
from flagbench_cases.record.time_of_day import ClockReading, set_by
from flagbench_cases.shared import manifests
from flagbench_cases.shared.spool import RankSpool
from unit.cases.record.runs import (
    FAILED,
    INF,
    NAN,
    WARMUP,
    WINDOW,
    checks_of,
    evidence,
    fact_of,
    record_of,
    resolved,
    state_of,
    step,
    with_device_time,
)

pytestmark = pytest.mark.image


def test_the_window_is_of_the_rank_whose_sum_is_largest() -> None:
    window = record_of(with_device_time(0.26))["window"]
    assert window["rank"] == 1
    assert window["seconds"] == pytest.approx(30 * 0.26)
    assert window["host_seconds"] == pytest.approx(30 * 0.31)
    assert window["step_seconds"] == [0.26] * 30


def test_what_a_run_measured_is_in_its_record() -> None:
    made = record_of(evidence())
    found = {metric["name"]: metric["value"] for metric in made["metrics"]}
    assert found["p_core"] == pytest.approx(64 / 0.25)
    assert found["p_core_host"] == pytest.approx(64 / 0.2)
    assert found["p_train"] == pytest.approx(64 / 0.31)
    assert found["mem_peak"] == 1.0
    assert found["mfu_measured"] == pytest.approx(4e9 / 1e11)  # against the slowest rank's ceiling
    assert not {"p_whole", "e2e_time", "mfu"} & set(found)  # a processor has no datasheet peak here
    assert made["flops"]["peak"] is None
    assert "cpu" in made["flops"]["peak_reason"]
    assert made["window"]["steps"] == 30
    assert made["conditions"]["precision"] == "fp32"
    assert made["conditions"]["batch_size"] == 32
    assert made["timing"]["warmup"] == pytest.approx(WARMUP * 0.31)
    assert [rank["step_median"] for rank in made["ranks"]] == [0.25, 0.25]


def test_a_record_has_the_uuid_of_every_device_that_has_one() -> None:
    found = evidence()
    fact_of(found, "rank", 1)["device"]["uuid"] = "GPU-1"
    made = record_of(found)
    assert [device.get("uuid") for device in made["system"]["devices"]] == [None, "GPU-1"]
    assert [rank.get("uuid") for rank in made["ranks"]] == [None, "GPU-1"]


def test_a_record_has_the_networks_that_nccl_chose() -> None:
    found = evidence()
    assert "networks" not in record_of(found)["system"]
    facts = [{"kind": "network", "rank": rank, "time": 1.0, "chosen": ["IB"]} for rank in range(2)]
    assert record_of(found._replace(facts=[*found.facts, *facts]))["system"]["networks"] == ["IB"]


def test_the_whole_published_run_has_its_own_metrics() -> None:
    found = evidence([0.5] * 100, converged=True)
    whole = {metric["name"]: metric["value"] for metric in record_of(found, resolved())["metrics"]}
    assert whole["p_whole"] == 100 * 64 / 20.0
    assert whole["e2e_time"] == 22.0
    broken = {metric["name"] for metric in record_of(found, resolved(), FAILED)["metrics"]}
    assert not {"p_whole", "e2e_time"} & broken
    assert "p_core" in broken


def test_the_record_of_nothing() -> None:
    made = record_of(NOTHING, None, Outcome("failed", "usage", "no", "do", 2))
    assert made["config"] is None
    assert made["metrics"] == []
    assert made["telemetry_reason"]
    assert made["software"]["torch"] is None
    assert made["status"] == {"state": "failed", "phase": "usage", "reason": "no", "remedy": "do", "exit_code": 2}


def test_a_device_that_measures_only_nan() -> None:
    made = record_of(evidence([NAN] * WINDOW, sums=(NAN, NAN), executed="wrong", error=NAN))
    assert made["software"]["precision"]["relative_error"] is None
    failed = {name for name, ok in checks_of(made).items() if not ok}
    assert failed == {"precision", "loss_finite", "parameters_finite", "ranks_in_step"}
    assert state_of(made) == ("failed", 12)


@pytest.mark.parametrize(
    "case",
    ["", "../../etc/passwd", "ü", "-x", "a\nb", "a" * 500, "\udcff"],
)
def test_a_hostile_case_name_stays_valid(case: str) -> None:
    made = record_of(NOTHING, None, FAILED, case=case, argv=[case])
    for name in (made["case"], made["record_id"]):
        assert re.fullmatch(r"[0-9A-Za-z][0-9A-Za-z.-]*", name)
    assert made["case"] not in (".", "..")


def test_a_line_is_one_line_of_strict_utf8() -> None:
    line = assemble.to_line({"a": "x\ny\u2028", "b": "ü\udcff", "c": [INF, (1.5, NAN)], "d": True})
    assert "\n" not in line
    read = json.loads(line.encode("utf-8").decode("utf-8"))
    assert read == {"a": "x\ny\u2028", "b": "ü?", "c": [None, [1.5, None]], "d": True}


def test_the_spool_of_a_job_is_read_rank_by_rank(tmp_path: Path) -> None:
    for rank in (0, 2):
        spool = RankSpool(str(tmp_path), rank)
        spool.reserve(1)
        spool.step(step())
        spool.fact("rank", node=0)
    found = read_spool(str(tmp_path), 3)
    assert sorted(found.steps) == [0, 2]  # rank 1 left nothing
    assert [fact["rank"] for fact in found.all("rank")] == [0, 2]
    assert found.first("rank") == {"node": 0}
    assert found.first("nothing") == {}


@pytest.mark.parametrize(
    ("stack", "name", "model"),
    [
        ("a100-cuda11.6", "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"),
        ("a100-cuda11.8", "A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"),
        ("a100-cuda11.6", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", None),
        ("cuda13", "NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"),
        ("cuda13", "NVIDIA H200 NVL", "NVIDIA H200 NVL"),
        ("cuda13", "NVIDIA H20", None),
        ("c500-maca2.18", "MetaX C500", "MetaX C500 (OAM)"),
        ("c500-maca3", "MXC500", "MetaX C500 (OAM)"),
    ],
)
def test_a_device_is_known_by_its_whole_name(stack: str, name: str, model: str | None) -> None:
    """A slice of it, and another board of its family, keeps its own name and has no peak."""
    found = evidence([0.5] * WINDOW, executed="bf16")
    for fact in found.all("rank"):
        fact["device"]["name"] = name
    made = record_of(found, resolved(), stack=manifests.load_stack(stack))
    assert made["conditions"]["device_model"] == (model or name)
    assert (made["flops"]["peak"] is not None) == (model is not None)


def losses_of(found: Evidence) -> dict[str, Any]:
    return record_of(found)["quality"]["losses"]


def test_every_step_has_its_loss_and_a_skipped_one_none() -> None:
    values = [0.5 + number / 64 for number in range(WINDOW)]
    found = evidence([NAN if number == 7 else value for number, value in enumerate(values)])
    assert losses_of(found) == {"first_step": 0, "steps": WINDOW, "values": [*values[:7], None, *values[8:]]}
    found.facts.append({"kind": "resumed", "rank": 0, "time": 1.0, "step": 40, "checkpoint": "step-40"})
    assert losses_of(found)["first_step"] == 40


def test_losses_in_fp32_are_exact() -> None:
    drawn = np.random.RandomState(0).uniform(0, 12, WINDOW).astype(np.float32)
    found = losses_of(evidence([float(value) for value in drawn]))["values"]
    assert np.array_equal(np.array(found).astype(np.float32), drawn)
    assert max(len(repr(value)) for value in found) <= 11


@pytest.mark.parametrize(("later", "moved"), [(60.5, None), (60.0 - 28800.0, -28800.0), (60.0 + 90.04, 90.0)])
def test_what_a_clock_was_set_by(later: float, moved: float | None) -> None:
    noon = ClockReading(1_700_000_000.0, 5_000.0)
    assert set_by(noon, ClockReading(noon.time_of_day + later, noon.elapsed + 60.0)) == moved


def test_a_record_says_what_the_clock_was_set_by() -> None:
    now = time_of_day.read()
    later = now._replace(time_of_day=now.time_of_day + 28800.0)
    made, plain = (record_of(NOTHING, None, FAILED, begun=begun)["system"] for begun in (later, now))
    assert made["clock_set_seconds"] == pytest.approx(-28800.0, abs=1.0)
    assert "clock_set_seconds" not in plain
