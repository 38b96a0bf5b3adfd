"""What disturbed a run stands beside its verdict, in the table and in JSON, and forbids nothing."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

from flagbench.catalog.model import Case, Claim
from flagbench.record.model import Record
from flagbench.report import verdict_table
from flagbench.verify import Verdict, verify_claim
from flagbench.verify.disturbances import MUCH_MEMORY


@pytest.mark.parametrize(
    ("name", "qualifier"),
    [
        ("a100-1x8-unsteady", "window not steady (drift +54.0 %)"),
        ("a100-1x8-throttled", "throttled 30 s (hw_thermal_slowdown)"),
        ("a100-1x8-tenant", "another tenant on the device"),
    ],
)
def test_a_disturbed_run_is_qualified(
    replay: Callable[[str], Record], case: Case, claim: Claim, name: str, qualifier: str
) -> None:
    record = replay(name)
    result = verify_claim([record], claim, case)
    assert (result.verdict, result.qualifiers) == (Verdict.REPRODUCED, (qualifier,))
    assert result.to_dict()["qualifiers"] == [qualifier]
    assert f"REPRODUCED ({qualifier}): p_core_host 1940" in verdict_table([record], result, stream=io.StringIO())


@pytest.mark.parametrize(
    ("window", "device", "qualifiers"),
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
    base: Record,
    edit: Callable[..., Record],
    case: Case,
    claim: Claim,
    window: dict[str, Any],
    device: dict[str, Any],
    qualifiers: tuple[str, ...],
) -> None:
    raw = {**base.raw, "window": window, "telemetry": {"devices": [device]}}
    assert verify_claim([edit(base, raw=raw)], claim, case).qualifiers == qualifiers


def test_of_several_runs_the_worst_is_told(
    base: Record, runs: Callable[..., list[Record]], edit: Callable[..., Record], case: Case, claim: Claim
) -> None:
    drifts = (0.03, -0.25, 0.0, 0.0, 0.0)
    disturbed = [
        edit(run, raw={**base.raw, "window": {"steady": abs(drift) <= 0.02, "drift": drift}})
        for run, drift in zip(runs(*[1940.0, 1941.0, 1942.0, 1943.0, 1944.0]), drifts, strict=True)
    ]
    assert verify_claim(disturbed, claim, case).qualifiers == ("window not steady (drift -25.0 %)",)


def test_a_record_that_cannot_be_compared_has_no_qualifier(
    replay: Callable[[str], Record], edit: Callable[..., Record], case: Case, claim: Claim
) -> None:
    elsewhere = edit(replay("a100-1x8-tenant"), conditions={"device_model": "another"})
    assert verify_claim([elsewhere], claim, case).qualifiers == ()
