"""What charts draw, from numbers alone; how they look is tests/browser's part."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from msgspec.structs import replace

from catalogs import CATALOG
from flagbench.records.model import DeviceTelemetry, Telemetry
from flagbench.records.read import read_record
from flagbench.report.axes import make_axis, make_step_axis
from flagbench.report.charts import (
    Chart,
    Note,
    Run,
    clock_chart,
    loss_chart,
    rate_charts,
    ratio_chart,
    roof_chart,
    run_chart,
    step_chart,
)
from flagbench.report.html import render_svg
from flagbench.verdict.result import Ratio, number_text
from unit.host.conftest import ROOT

DOCS = ROOT / "docs"


def test_ratio_chart_draws_the_interval_in_the_band() -> None:
    chart = ratio_chart({"p_core": (Ratio(0.978, (0.962, 0.994)), "REPRODUCED")})
    assert chart is not None
    assert chart.band is not None
    assert chart.rows[0].ends is not None
    low, high, left, right = (*map(chart.x.at, chart.band), *map(chart.x.at, chart.rows[0].ends))
    assert 10 < low < left < chart.x.at(0.978) < right < high < 470
    assert chart.table.rows == [("p_core", "0.978", "0.962 to 0.994", "REPRODUCED")]
    assert ratio_chart({}) is None


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ((0.93, 1.1), ["0.90", "0.95", "1.00", "1.05", "1.10"]),
        ((0, 1234), ["0", "250", "500", "750", "1,000", "1,250"]),
        ((3, 3), ["3", "4"]),
        ((0, 3e-9), ["0", "1e-09", "2e-09", "3e-09"]),
        ((0, 1.9e6), ["0.0M", "0.5M", "1.0M", "1.5M", "2.0M"]),
        ((-1, 2), ["-1", "0", "1", "2"]),
    ],
)
def test_an_axis_has_round_numbers(values: tuple[float, float], texts: list[str]) -> None:
    found = make_axis(values, 0, 100)
    assert [text for _, text in found.marks] == texts
    assert (found.at(found.low), found.at(found.high), found.at(1e9)) == (0, 100, 100)


def test_an_axis_without_zero_says_its_range() -> None:
    assert make_axis((0.93, 1.1), 0, 100, "ratio").label == "ratio (axis from 0.90 to 1.10)"
    assert make_axis((0, 1234), 0, 100, "ms").label == "ms"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (10_923.4, "10,920"),
        (56_150.0, "56,150"),
        (0.0024, "0.0024"),
        (1.0, "1"),
        (0.69314, "0.6931"),
        (1e7, "10,000,000"),
    ],
)
def test_numbers_are_as_people_write_them(value: float, text: str) -> None:
    assert number_text(value) == text


def test_record_charts_have_every_step_and_a_table() -> None:
    record = read_record(DOCS / "verdict" / "record.json")
    steps = step_chart(record)
    assert record.window is not None
    assert isinstance(steps, Chart)
    assert steps.y is not None
    assert len(steps.lines[0].points) == record.window.steps == 1115
    assert (steps.lines[0].points[0], steps.x.label) == ((10, pytest.approx(29.784)), "step")
    assert 0 < len(steps.table.rows) <= 60
    assert steps.table.rows[0][0] == "10 to 28"
    losses = record.quality and record.quality.losses
    assert losses is not None
    both = loss_chart({"a": dict(enumerate(losses.values, 1)), "b": {1: 2.0, 2: None, 3: 1.0}})
    assert isinstance(both, Chart)
    assert [line.name for line in both.lines] == ["a", "b"]
    assert both.table.columns[0] == "run"
    assert both.table.rows[-1] == ("b", "3", "1", "1", "1")


def test_clock_chart_shows_what_throttled() -> None:
    record = read_record(DOCS / "verdict" / "record.json")
    device = DeviceTelemetry(
        index=1,
        sm_clock_busy_mhz=1410,
        sm_clock_min_mhz=345,
        sm_clock_max_mhz=1980,
        throttle_seconds={"sw_thermal_slowdown": 7, "gpu_idle": 3},
    )
    chart = clock_chart(replace(record, telemetry=Telemetry(devices=(device, DeviceTelemetry(index=2)))))
    assert chart is not None
    assert chart.table.rows == [("1", "1,410", "345 to 1,980", "sw_thermal_slowdown 7.0 s")]
    assert [row.tone for row in chart.rows] == ["bad"]
    assert clock_chart(record) is None


def test_a_device_at_its_own_power_limit_is_not_marked() -> None:
    chart = clock_chart(read_record(DOCS / "measured" / "h100-llama3.1-8b-lora.json"))
    assert chart is not None
    assert [(row.value, row.tone) for row in chart.rows] == [(pytest.approx(1711, abs=1), "s0")]


def test_roof_chart_divides_by_the_peaks_of_the_device() -> None:
    record = read_record(ROOT / "tests/replay/records" / "run-roofs-2.json")
    device = CATALOG.devices["h100-sxm"]
    chart = roof_chart(record, device)
    assert chart is not None
    shares = {row.label: row.value for row in chart.rows}
    rates = {one.name: one.rate for one in record.measurements}
    assert shares["matmul_bf16"] == rates["matmul_bf16"] / device.flops["bf16"]
    assert "memory_bandwidth" in shares
    assert "all_reduce" not in shares
    assert roof_chart(record, None) is None


def test_measurements_without_a_peak_have_a_chart_of_their_rates() -> None:
    record = read_record(ROOT / "tests/replay/records" / "run-roofs-2.json")
    products, copies = rate_charts(record, None)
    assert products is not None
    assert copies is not None
    assert [row.label for row in products.rows][:2] == ["matmul_fp64", "matmul_fp64_best"]
    assert {row.text.split()[1] for row in copies.rows} == {"GB/s"}
    assert (products.x.low, copies.x.low) == (0, 0)
    assert rate_charts(record, CATALOG.devices["h100-sxm"])[0] is None


def test_run_chart_keeps_the_newest_runs() -> None:
    runs = [Run(f"2026-01-01T{n // 60:02}:{n % 60:02}:00Z", f"r{n}", 1.0 + n / 1000) for n in range(250)]
    chart = run_chart(list(reversed(runs)), "All runs", "ratio", band=(0.95, 1.10))
    assert isinstance(chart, Chart)
    assert [len(line.points) for line in chart.lines] == [199, 1]
    assert chart.lines[1].points == ((200, 1.249),)
    assert chart.table.rows[0][2] == "r249"


def test_dots_of_runs_have_host_and_date() -> None:
    hosts = ("node-17", "node-18", "ip-10-20-30-40.eu-west-1.compute.internal")
    runs = [Run(f"2026-11-0{day}T12:30:00Z", f"r{day}", 13_723.4, host=host) for day, host in enumerate(hosts, 1)]
    chart = run_chart(runs, "All runs", "tokens_per_second")
    assert isinstance(chart, Chart)
    assert [title for line in chart.lines for title in line.titles] == [
        f"13,720 on {host}, 2026-11-0{day} 12:30" for day, host in enumerate(hosts, 1)
    ]
    assert [text for _, text in chart.x.marks] == ["2026-11-01", "2026-11-02", "2026-11-03"]
    assert [name for _, name in chart.hosts][:2] == ["node-17", "node-18"]
    assert chart.y is not None
    assert (chart.y.low, chart.y.label) == (0, "tokens_per_second")


def test_two_values_are_words() -> None:
    runs = [Run(f"2026-11-0{day}T12:30:00Z", f"r{day}", 700.0 + day, host="vm") for day in (1, 2)]
    note = run_chart(runs, "All runs", "matmul_bf16")
    assert note == Note("All runs", "2 runs, matmul_bf16: 701 on vm, 2026-11-01 12:30; 702 on vm, 2026-11-02 12:30.")
    assert run_chart(runs[:1], "All runs", "matmul_bf16") is None
    record = read_record(DOCS / "measured" / "h200-glm.json")
    assert record.window is not None
    window = replace(record.window, step_seconds=[10.92, 10.94], steps=2, first_step=5)
    note = step_chart(replace(record, window=window))
    assert note == Note("Step times over the window", "Step 5: 10,920 ms, step 6: 10,940 ms.")
    assert loss_chart({"a": {1: 2.5, 2: 2.0}, "b": {1: 2.25}}) == Note(
        "Loss by step", "a, step 1: 2.5, step 2: 2. b, step 1: 2.25."
    )


def test_numbers_beside_an_axis_are_inside_the_picture() -> None:
    record = read_record(DOCS / "measured" / "h200-glm.json")
    assert record.window is not None
    window = replace(record.window, step_seconds=[10.9325, 10.9411, 10.9334], steps=3, first_step=5)
    chart = step_chart(replace(record, window=window))
    assert isinstance(chart, Chart)
    assert chart.y is not None
    texts = [text for _, text in chart.y.marks]
    assert texts == ["0", "2,500", "5,000", "7,500", "10,000", "12,500"]
    assert chart.left - 6 - 8.3 * max(map(len, texts)) > 0
    assert [text for _, text in chart.x.marks] == ["5", "6", "7"]


@pytest.mark.parametrize(
    ("first", "last", "texts"),
    [
        (5, 6, ["5", "6"]),
        (0, 1, ["0", "1"]),
        (7, 7, ["7"]),
        (40, 69, ["40", "50", "60"]),
        (1, 70, ["20", "40", "60"]),
        (10, 1124, ["200", "400", "600", "800", "1,000"]),
    ],
)
def test_steps_are_whole_numbers(first: int, last: int, texts: list[str]) -> None:
    assert [text for _, text in make_step_axis(first, last, 52).marks] == texts


def test_a_picture_is_well_formed_and_the_same_twice() -> None:
    chart = ratio_chart({"<b>&": (Ratio(0.5), "BELOW")})
    assert chart is not None
    first = render_svg(chart)
    root = ElementTree.fromstring(first)
    assert first == render_svg(chart)
    assert root.get("role") == "img"
    assert "<b>&" in [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
