"""What a sampler's file says of a run: recorded files in, the record's `telemetry` out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flagbench_cases.telemetry.summary import read_start, summarise

pytestmark = pytest.mark.image

RECORDED = str(Path(__file__).parent / "a100_power_capped.jsonl")


def write(path: Path, *lines: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def sample(t: float, **device: Any) -> dict[str, Any]:
    return {"kind": "sample", "t": t, "cpu": {}, "devices": [{"index": 0, **device}]}


def test_a_whole_recorded_run() -> None:
    summary = summarise(RECORDED)
    assert summary["samples"] == 5  # the torn sixth is passed over
    assert summary["interval_s"] == 1.0
    assert summary["errors"] == 1
    assert summary["cpu"] == {"util_mean": 0.5, "mem_used_max_bytes": 8000, "rss_max_bytes": 4000}
    assert summary["devices"][0] == {
        "index": 0,
        "name": "NVIDIA A100-SXM4-40GB",
        "power_mean_w": 270.0,
        "power_max_w": 400.0,
        "energy_j": 175.0 + 350.0 + 400.0 + 300.0,
        "energy_seconds": 4.0,
        "temperature_max_c": 70,
        "sm_clock_mean_mhz": 1122.0,
        "sm_clock_min_mhz": 210,
        "sm_clock_busy_mhz": 1350.0,
        "power_limit_w": 400.0,
        "util_mean": 0.68,
        "mem_used_max_bytes": 30000000000,
        "mem_used_before_bytes": 3145728,
        "foreign_processes": 0,
        "throttle_seconds": {"gpu_idle": 1.0, "hw_thermal_slowdown": 1.0, "sw_power_cap": 2.0},
    }
    assert json.loads(json.dumps(summary)) == summary


def test_other_tenants_are_counted() -> None:
    summary = summarise(RECORDED)
    # Process 71 is the run's own. The sample it lost is bridged: two intervals are no hole.
    assert summary["devices"][1] == {
        "index": 1,
        "name": "NVIDIA A100-SXM4-40GB",
        "power_mean_w": 200.0,
        "power_max_w": 200.0,
        "energy_j": 800.0,
        "energy_seconds": 4.0,
        "temperature_max_c": 47,
        "power_limit_w": 400.0,
        "mem_used_before_bytes": 9000000000,
        "foreign_processes": 1,
    }


def test_a_window_cuts_between_samples() -> None:
    summary = summarise(RECORDED, (1001.5, 1003.25))
    device = summary["devices"][0]
    assert summary["samples"] == 2
    assert summary["errors"] == 1
    # 350 to 400 W in half a second, 400 W for one, 400 to 350 W in a quarter.
    assert device["energy_j"] == pytest.approx(375 * 0.5 + 400 + 375 * 0.25)
    assert device["energy_seconds"] == 1.75
    assert device["throttle_seconds"] == {"hw_thermal_slowdown": 0.25, "sw_power_cap": 1.25}
    assert device["sm_clock_min_mhz"] == 1245


def test_energy_is_not_made_up_across_a_hole(tmp_path: Path) -> None:
    times = (0.0, 1.0, 60.0, 61.0, 50.0, 51.0)
    path = write(tmp_path / "t", *(sample(t, power_w=100.0, throttle=["sw_power_cap"]) for t in times))
    summary = summarise(path)
    assert summary["devices"][0]["energy_j"] == 300.0
    assert summary["devices"][0]["energy_seconds"] == 3.0
    assert summary["devices"][0]["throttle_seconds"] == {"sw_power_cap": 6.0}


def test_energy_is_that_of_the_device_s_counter(tmp_path: Path) -> None:
    """Across a gap too; at the ends of the window it is shared out."""
    counted = {0.0: 0, 1.0: 300_000, 9.0: 3_100_000, 10.0: 3_500_000}
    lines = [sample(t, power_w=10.0, energy_mj=millijoules) for t, millijoules in counted.items()]
    device = summarise(write(tmp_path / "t", *lines), (0.5, 20.0))["devices"][0]
    assert (device["energy_j"], device["energy_seconds"]) == (3350.0, 9.5)
    reset = [*lines, sample(11.0, power_w=10.0, energy_mj=0)]
    assert summarise(write(tmp_path / "t", *reset))["devices"][0]["energy_j"] < 3350.0  # of its power


@pytest.mark.parametrize(("end", "seconds"), [(4.9, None), (60.0, 59)])
def test_samples_that_end_early_are_told(tmp_path: Path, end: float, seconds: Any) -> None:
    path = write(tmp_path / "t", sample(0.0), sample(1.0), {"kind": "error", "t": 0.5, "device": 1, "reason": "lost"})
    problems = summarise(path, (0.0, end))["problems"]
    stopped = ["no sample in the last %d s: the monitor stopped answering" % seconds] if seconds else []
    assert problems == [*stopped, "device 1: lost"]


def test_a_missing_file_is_none_and_an_empty_one_has_no_samples(tmp_path: Path) -> None:
    empty = write(tmp_path / "empty")
    assert summarise(str(tmp_path / "missing")) is None
    assert read_start(str(tmp_path / "missing")) is None
    assert read_start(empty) is None
    assert summarise(empty) == {"samples": 0, "cpu": {}, "devices": [], "errors": 0}


@pytest.mark.parametrize("cut", [1, 900, 2500])
def test_a_file_cut_anywhere_still_gives_its_whole_samples(tmp_path: Path, cut: int) -> None:
    kept = Path(RECORDED).read_bytes()[:cut]
    (tmp_path / "cut").write_bytes(kept + b"\n\xff\xfe[]\n[1]\n")
    summary = summarise(str(tmp_path / "cut"))
    assert summary["samples"] == sum(line.startswith(b'{"kind":"sample"') for line in kept.split(b"\n")[:-1])


def test_what_the_processors_did(tmp_path: Path) -> None:
    def cpu(t: float, **values: Any) -> dict[str, Any]:
        return {"kind": "sample", "t": t, "cpu": {"quota": 1.5, **values}, "devices": []}

    path = write(
        tmp_path / "t",
        cpu(0.0, throttled=[100, 40]),  # before the window, like what was throttled until then
        cpu(1.0, throttled=[110, 40], others=0.25, steal=0.0),
        cpu(2.0, throttled=[120, 45], others=0.75, steal=0.02),
        cpu(3.0, throttled=[130, 49], others=0.5, steal=0.01),
    )
    found = summarise(path, (0.5, 9.0))["cpu"]
    assert found == {"others_mean": 0.5, "steal_mean": 0.01, "quota": 1.5, "throttled": 0.45}
    assert "throttled" not in summarise(path, (2.5, 9.0))["cpu"]  # one count says nothing
