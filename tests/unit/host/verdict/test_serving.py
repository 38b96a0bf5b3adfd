"""Verdicts on runs of an engine: with a row that is only cited, with a claim, and with a run of another release."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from catalogs import CATALOG
from flagbench.expect.rows import verify_nearest
from flagbench.manifests.fields import NOT_PUBLISHED
from flagbench.manifests.rows import Claim
from flagbench.records.model import Record
from flagbench.records.read import read_record
from flagbench.report.verdict_page import headline, verdict_table
from flagbench.verdict import Verdict, verify_baseline, verify_claim
from served import CASE, DEVICE, served_record

TESTED = "records"
SPEC = CATALOG.cases[CASE]
FIRST_CLAIM = next(iter(CATALOG.claims.values()))


def read(raw: dict[str, Any]) -> Record:
    return read_record(json.dumps(raw).encode())


def claim_of(raw: dict[str, Any], latency: float, **conditions: Any) -> Claim:
    """A row, as nobody published it, of a batch's latency under the conditions of a record."""
    metric = replace(FIRST_CLAIM.metrics[0], name="latency_mean", value=latency, unit="s", scope="job", printed=None)
    return replace(
        FIRST_CLAIM,
        id=f"{CASE}/made-up",
        case=CASE,
        stack="vllm-cuda13",
        conditions={**raw["conditions"], **conditions},
        metrics=(metric,),
        anomalies=(),
    )


def test_a_row_that_is_only_cited_gives_a_ratio_and_no_verdict() -> None:
    """vLLM's CI published a latency of an H200, in seconds."""
    result = verify_nearest([read(served_record(latency=0.6))], CATALOG)
    assert result is not None
    assert result.verdict is Verdict.REFERENCE
    assert [row.id for row in result.cited] == ["vllm-ci/1", "vllm-ci/7"]
    (metric,) = result.metrics
    assert metric.ratio is not None
    assert metric.ratio.value == pytest.approx(0.834059 / 0.6)
    assert "1.39" in headline(result)  # how much faster, not 0.72 of the time


@pytest.mark.parametrize(
    ("release", "verdict"),
    [
        ("0.31.0", Verdict.REPRODUCED),
        ("0.30.0", Verdict.NOT_COMPARABLE),
        (NOT_PUBLISHED, Verdict.NOT_COMPARABLE),
    ],
)
def test_a_verdict_requires_the_release_of_the_row(release: str, verdict: Verdict) -> None:
    raw = served_record(latency=0.6)
    result = verify_claim([read(raw)], claim_of(raw, 0.61, vllm=release), SPEC)
    assert result.verdict is verdict
    assert {condition.name for condition in result.differing} <= {"vllm"}


def test_runs_of_two_releases_are_not_compared() -> None:
    run, other = (read(served_record(0.6, release)) for release in ("0.31.0", "0.31.1"))
    assert verify_baseline([run], [other], SPEC).verdict is Verdict.NOT_COMPARABLE


def test_the_numbers_of_a_record_follow_from_its_evidence() -> None:
    raw = served_record(latency=0.6, copy=4.2e12)
    edited = json.loads(json.dumps(raw))
    for metric in edited["metrics"]:
        if metric["name"] == "decode_bandwidth":
            metric["value"] *= 1.2
    result = verify_claim([read(edited)], claim_of(raw, 0.6), SPEC)
    assert result.verdict is Verdict.INVALID
    assert "decode_bandwidth" in result.reason
    assert verify_claim([read(raw)], claim_of(raw, 0.6), SPEC).verdict is Verdict.REPRODUCED
    assert raw["conditions"]["device_model"] == DEVICE


def test_a_long_window_has_the_times_of_its_iterations_too() -> None:
    record = read(served_record(latency=0.6, steps=120))
    assert record.metric("tpot") is not None
    assert record.quality is not None
    assert record.quality.absent == {}


@pytest.mark.parametrize(("steps", "parts", "reason"), [(126, 1, "16000 iterations"), (30, 2, "129 iterations")])
def test_a_record_says_why_it_has_no_times_of_iterations(steps: int, parts: int, reason: str) -> None:
    record = read(served_record(latency=0.6, steps=steps, parts=parts))  # 126 batches have 16,128 iterations
    assert record.metric("output_tokens_per_second") is not None
    assert record.quality is not None
    assert {*record.quality.absent} == {"ttft", "tpot", "decode_bandwidth"}
    assert reason in record.quality.absent["tpot"]
    assert "ttft, tpot, decode_bandwidth" in verdict_table([record], None)
