"""Records of a case that measures: their numbers follow from their evidence, and a slow device is named."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from catalogs import CATALOG
from flagbench.console.page import render
from flagbench.records.model import Metric, SlowestDevice
from flagbench.records.runs_and_series import Runs
from flagbench.report.charts import rate_charts
from flagbench.report.record_page import record_page
from flagbench.report.verdict_page import verdict_table
from flagbench.runs.series_page import verdict_of
from flagbench.verdict import Verdict, VerifyResult, verify_baseline, verify_claim
from flagbench.verdict.explain import explain
from flagbench.verdict.result import slowest_device
from flagbench_core.evidence.document import digest_of

from .conftest import MEASURED as DOCS
from .conftest import ROWS, Raw, read

TESTED = "records"
MEASURED: Raw = json.loads((ROWS / "run-roofs-2.json").read_text(encoding="utf-8"))
"""Two ranks on a processor; it names no slow device."""


def verified(change: Callable[[Raw], Any] = lambda raw: None) -> VerifyResult:
    raw, baseline = copy.deepcopy(MEASURED), copy.deepcopy(MEASURED)
    change(raw)
    raw.update(record_id=raw["record_id"][:-8] + "00000000", run_id="another")
    raw["evidence_digest"] = digest_of(raw["evidence"])
    return verify_baseline([read(raw)], read(baseline), CATALOG.cases["roofs"])


def test_another_device_is_not_comparable_although_the_gate_was_not_measured() -> None:
    claim = CATALOG.claims["roofs/h100-1x1-mamf-fp8"]
    result = verify_claim([read(MEASURED)], claim, CATALOG.cases["roofs"])
    assert (result.gate, result.verdict) == ("mamf_fp8", Verdict.NOT_COMPARABLE)
    assert "device_model" in result.reason


def test_a_measured_record_is_valid() -> None:
    result = verified()
    assert result.verdict is not Verdict.INVALID, result.reason
    assert {metric.name for metric in result.metrics if metric.comparable} >= {"matmul_fp32", "all_reduce_busbw"}


def test_what_only_earlier_versions_measured_changes_no_verdict() -> None:
    result = verified()
    assert {finding.rule for finding in result.findings} & {"numbers", "evidence"} == set()
    names = {name.removeprefix("metric ") for name in result.not_compared}
    assert {"all_gather_busbw", "all_to_all_busbw", "memory_capacity"} <= names


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw["measurements"][0].update(rate=2 * raw["measurements"][0]["rate"]),
        lambda raw: raw["measurements"][0].update(steady=not raw["measurements"][0]["steady"]),
        lambda raw: raw["measurements"][0].update(shape=[1, 2, 3]),
        lambda raw: raw["measurements"].pop(),
        lambda raw: raw["metrics"][0].update(value=2 * raw["metrics"][0]["value"]),
        lambda raw: raw.update(slow_devices=[{"rank": 1, "share": 0.8}]),
        lambda raw: raw["metrics"][0].update(slowest_device={"rank": 1, "value": 0.017, "share": 0.99}),
        lambda raw: raw["evidence"]["spans"][0]["measured"].update(transposed="no"),
    ],
)
def test_an_edited_number_is_invalid(change: Callable[[Raw], Any]) -> None:
    assert {finding.rule for finding in verified(change).findings} == {"numbers"}


def test_an_operation_without_sizes_is_invalid() -> None:
    result = verified(lambda raw: raw["evidence"]["spans"][0]["measured"].pop("shape"))
    assert {finding.rule for finding in result.findings} == {"evidence"}


def slow(raw: Raw) -> None:
    raw["slow_devices"] = [{"rank": 1, "share": 0.8}]


def test_a_slow_device_is_named() -> None:
    raw = copy.deepcopy(MEASURED)
    slow(raw)
    assert "rank 1" in verdict_table([read(raw)], None)
    assert "rank" not in verdict_table([read(MEASURED)], None)


def test_a_run_ends_with_its_metrics_where_no_row_is_of_its_device() -> None:
    raw = copy.deepcopy(MEASURED)
    raw["quality"]["absent"] |= {"all_reduce_64": "alone", "all_reduce_128": "alone"}
    short, wide = (
        verdict_of(Runs([read(raw)]), CATALOG.cases["roofs"], CATALOG, None, wide=wide) for wide in (False, True)
    )
    assert "matmul_fp32" in short
    assert ("matmul_fp32_mean" in short, "matmul_fp32_mean" in wide) == (False, True)
    assert "all_reduce (alone)" in short


def test_roofs_have_no_steps_to_explain() -> None:
    record, case = read(MEASURED), CATALOG.cases["roofs"]
    result = verify_claim([record], CATALOG.claims["roofs/a100-1x8-bf16"], case)
    assert "report" in (explain([record], result, case).reason or "")


def test_a_row_that_was_chosen_is_said_to_be_one_of_several() -> None:
    case, claim = CATALOG.cases["roofs"], CATALOG.claims["roofs/a100-1x8-bf16"]
    for chosen in (True, False):
        page = verdict_table([read(MEASURED)], verify_claim([read(MEASURED)], claim, case, chosen=chosen))
        assert ("expect roofs" in page and "--claim" in page) is chosen


def of_eight_devices() -> Raw:
    """The bandwidth of eight devices, one of which reaches 70 % of the others: the middle one shows nothing of it."""
    raw = copy.deepcopy(MEASURED)
    bandwidth = next(each for each in raw["measurements"] if each["name"] == "memory_bandwidth")
    bandwidth["devices"] = [3e12] * 5 + [2.1e12] + [3e12] * 2
    bandwidth["rate"] = 3e12
    for metric in raw["metrics"]:
        if metric["name"] == "memory_bandwidth":
            metric.update(value=3000.0, slowest_device={"rank": 5, "value": 2100.0, "share": 0.7})
    return raw


SLOWEST = "rank 5: 2,100, 70.0% of the others"


def test_one_slow_device_of_eight_stands_beside_the_bandwidth() -> None:
    record = read(of_eight_devices())
    assert SLOWEST in render(record_page(record, []))
    assert SLOWEST in verdict_table([record], None)
    (chart,) = (chart for chart in rate_charts(record, None) if chart is not None and chart.id == "copies")
    assert SLOWEST in [cell for row in chart.table.rows for cell in row]


def test_of_more_devices_than_a_record_lists_the_metric_says_the_slowest() -> None:
    raw = of_eight_devices()
    next(each for each in raw["measurements"] if each["name"] == "memory_bandwidth")["devices"] = []
    assert SLOWEST in render(record_page(read(raw), []))


def test_a_single_device_has_no_column_of_the_slowest() -> None:
    raw = json.loads((DOCS / "h100-roofs.json").read_text(encoding="utf-8"))
    record, case = read(raw), CATALOG.cases["roofs"]
    result = verify_claim([record], CATALOG.claims["roofs/a100-1x8-bf16"], case)
    for page in (render(record_page(record, [])), verdict_table([record], None), verdict_table([record], result)):
        assert "slowest device" not in page.lower()


def test_a_verdict_has_the_slowest_device_of_its_metric() -> None:
    """Computed again, so of records of earlier versions, too."""
    result = verified()
    metric = next(each for each in result.metrics if each.name == "memory_bandwidth")
    listed = next(each["devices"] for each in MEASURED["measurements"] if each["name"] == "memory_bandwidth")
    assert metric.slowest_device is not None
    assert metric.slowest_device.rank == listed.index(min(listed))
    assert metric.slowest_device.share == pytest.approx(min(listed) / max(listed))
    assert next(each for each in result.metrics if each.name == "all_reduce_busbw").slowest_device is None


def test_of_several_runs_the_one_farthest_behind_counts() -> None:
    slight, strong = (
        Metric("m", 1.0, "GB/s", "device", slowest_device=SlowestDevice(rank, 1.0, share))
        for rank, share in ((3, 0.99), (5, 0.7))
    )
    assert slowest_device([slight, strong]) == SlowestDevice(5, 1.0, 0.7)
    assert slowest_device([Metric("m", 1.0, "GB/s", "device")]) is None


def test_a_record_is_shown_with_its_slowest_devices() -> None:
    page = render(record_page(read(MEASURED), []), wide=True)
    assert "rank 0: " in page
    assert all(each["name"] in page for each in MEASURED["measurements"])
    assert all(name in page for name in MEASURED["quality"]["absent"])


def test_a_soak_is_shown_with_the_device_that_became_slowest() -> None:
    rates = [{"memory_bandwidth": [3000e9, 3000e9 * share]} for share in (1.1, 1.0, 0.9, 0.845)]
    laps = [{"lap": index, "seconds": 60.0, "rates": of_lap} for index, of_lap in enumerate(rates, 1)]
    record = read({**copy.deepcopy(MEASURED), "laps": laps})
    row = next(line for line in render(record_page(record, [])).splitlines() if "84.5%" in line)
    assert row.split() == ["memory_bandwidth", "84.5%", "rank", "1"]


def test_a_row_is_decided_by_the_metric_that_it_has() -> None:
    """The measured record against a published row of an all-reduce that it equals in all but its repeats."""
    claim = CATALOG.claims["roofs/a100-1x8-all-reduce"]
    value = next(metric["value"] for metric in MEASURED["metrics"] if metric["name"] == "all_reduce_mean")
    same = {name: MEASURED["conditions"][name] for name in claim.conditions}
    row = replace(claim, conditions=same, metrics=(replace(claim.metrics[0], value=value),))
    result = verify_claim([read(MEASURED)], row, CATALOG.cases["roofs"])
    assert (result.gate, result.verdict) == ("all_reduce_mean", Verdict.INCONCLUSIVE)
    assert "--full" in result.reason  # repeats, which --full has
