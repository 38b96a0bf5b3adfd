"""What disturbed a run stands beside its verdict, in the table and in JSON, and forbids nothing."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from flagbench.records.model import Window
from flagbench.records.telemetry import DeviceTelemetry, Telemetry
from flagbench.verdict import Verdict, verify_baseline
from flagbench.verdict.disturbances import MUCH_MEMORY

from .conftest import BASE, CASE, edit, held, replay, runs


def window(**fields: Any) -> Window:
    return Window(first_step=0, steps=200, samples=51200, seconds=26.6, **fields)


@pytest.mark.parametrize(
    ("steadiness", "device", "qualifiers"),
    [
        ({"steady": True, "drift": 0.02}, {"foreign_processes": 0, "throttle_seconds": {}}, ()),
        ({"steady": None, "drift": None}, {"throttle_seconds": {"applications_clocks_setting": 90.0}}, ()),
        ({}, {"mem_used_before_bytes": MUCH_MEMORY}, ()),
        ({}, {"mem_used_before_bytes": MUCH_MEMORY + 1}, ("another tenant on the device",)),
        ({"steady": False}, {}, ("window not steady",)),
        ({}, {"throttle_seconds": {"reason_0x200": 7.2}}, ("throttled 7 s (reason_0x200)",)),
    ],
)
def test_what_disturbs_and_what_does_not(
    steadiness: dict[str, Any], device: dict[str, Any], qualifiers: tuple[str, ...]
) -> None:
    record = edit(window=window(**steadiness), telemetry=Telemetry((DeviceTelemetry(**device),)))
    assert held(record).qualifiers == qualifiers


def test_a_clock_that_was_set_during_the_run_is_told() -> None:
    record = edit(system=replace(BASE.system, clock_set_seconds=-28800.0))
    result = held(record)
    assert (result.verdict, result.qualifiers) == (
        Verdict.REPRODUCED,
        ("the clock was set by -28800 s during the run",),
    )


def test_of_several_runs_the_worst_is_told() -> None:
    drifts = (0.03, -0.25, 0.0, 0.0, 0.0)
    disturbed = [
        edit(run, window=window(steady=abs(drift) <= 0.02, drift=drift))
        for run, drift in zip(runs(1940.0, 1941.0, 1942.0, 1943.0, 1944.0), drifts)
    ]
    assert held(*disturbed).qualifiers == ("window not steady (drift -25.0 %)",)


def test_a_record_that_cannot_be_compared_has_no_qualifier() -> None:
    assert held(edit(replay("a100-1x8-tenant"), conditions={"device_model": "another"})).qualifiers == ()


def test_what_disturbed_the_baseline_is_told_as_its_own() -> None:
    disturbed = edit(record_id="fixture-before", window=window(steady=False, drift=0.1))
    result = verify_baseline([BASE], disturbed, CASE)
    assert result.qualifiers == ("baseline: window not steady (drift +10.0 %)",)


def test_more_time_outside_of_the_steps_is_told() -> None:
    def timed(share: float, record_id: str) -> Any:
        return edit(record_id=record_id, window=window(host_seconds=26.6 / (1 - share)))

    before = timed(0.01, "fixture-before")
    assert verify_baseline([timed(0.02, "fixture-now")], before, CASE).qualifiers == ()
    result = verify_baseline([timed(0.5, "fixture-now")], before, CASE)
    assert result.qualifiers == ("50% of the time outside of the device's steps, the baseline 1%",)
    assert verify_baseline([BASE], before, CASE).qualifiers == ()
