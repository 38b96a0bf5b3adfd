"""The health of a run's devices before and after, by the sampler's file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flagbench_cases.telemetry import health
from flagbench_cases.telemetry.health import HealthReadings
from flagbench_cases.telemetry.jsonlines import JsonLinesWriter
from flagbench_cases.telemetry.summary import summarise
from nvml_stubs import UUIDS

pytestmark = pytest.mark.image


def sampled(path: Path, uuids: list[Any]) -> str:
    """A sampler's file of two samples, of which the second has a narrow PCIe link."""
    start = {"kind": "start", "t": 1.0, "devices": [{"index": n, "uuid": uuid} for n, uuid in enumerate(uuids)]}
    samples = []
    for second, width in ((2.0, 16), (3.0, 8)):
        devices = [{"index": n, "pcie_generation": 3, "pcie_width": width} for n in range(len(uuids))]
        samples.append({"kind": "sample", "t": second, "devices": devices})
    with JsonLinesWriter(str(path)) as writer:
        writer.append([start, *samples])
    return str(path)


def test_readings_before_and_after(tmp_path: Path, nvml_stub: Callable) -> None:
    path = sampled(tmp_path / "telemetry.jsonl", [UUIDS[1], UUIDS[0]])
    planted = {"NVML_STUB_PROCESSES": str(tmp_path / "processes"), "NVML_STUB_ECC_CORRECTED_1": "5,9"}
    env = {**nvml_stub(), **planted}
    readings = HealthReadings("nvml", path)
    readings.start_first(env)
    readings.read_last(env, hurry=False)
    readings.write()
    first, second = summarise(path)["devices"]
    assert first["health"]["after"]["uuid"] == UUIDS[1]
    assert [first["health"][when]["ecc_corrected"] for when in ("before", "after")] == [5, 9]
    assert [second["health"][when]["ecc_corrected"] for when in ("before", "after")] == [0, 0]
    loaded = (first["health"]["after"]["pcie_generation_loaded"], first["health"]["after"]["pcie_width_loaded"])
    assert loaded == (3, 16)
    assert "pcie_width_loaded" not in first["health"]["before"]
    assert json.loads(Path(path).read_text().splitlines()[-1])["when"] == "after"


def test_a_driver_that_stalls_after_the_run_is_a_fact(
    tmp_path: Path, nvml_stub: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "HURRY_SECONDS", 2.0)
    path = sampled(tmp_path / "telemetry.jsonl", UUIDS)
    planted = {"NVML_STUB_PROCESSES": str(tmp_path / "processes"), "NVML_STUB_REMAP_FAILED_1": "0,HANG"}
    env = {**nvml_stub(), **planted}
    readings = HealthReadings("nvml", path)
    readings.start_first(env)
    readings.read_last(env, hurry=True)
    readings.write()
    first, second = (device["health"] for device in summarise(path)["devices"])
    assert (second["before"]["row_remap_failed"], second["after"]["unanswered"]) == (False, "no answer in 2 s")
    assert first["after"]["row_remap_failed"] is False


def test_devices_that_the_monitor_does_not_name_are_not_read(tmp_path: Path, nvml_stub: Callable) -> None:
    path = sampled(tmp_path / "telemetry.jsonl", [UUIDS[1], None])
    readings = HealthReadings("nvml", path)
    readings.start_first(nvml_stub())
    readings.read_last(nvml_stub(), hurry=False)
    readings.write()
    assert ["health" in device for device in summarise(path)["devices"]] == [False, False]
