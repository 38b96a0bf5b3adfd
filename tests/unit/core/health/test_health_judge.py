"""What a fault means for an acceptance: one fault on one of two devices, and what is found of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flagbench_core.health.judge import HealthOutcome, judge_health
from flagbench_core.health.kernel_log import Xid, XidLog
from flagbench_core.health.reading import (
    COUNTERS,
    ECC_OFF,
    NO_PERMISSION,
    NOT_FOUND,
    READ,
    STATES,
    DeviceHealth,
    device_health,
)

pytestmark = pytest.mark.image

FAIL, FIX, INCONCLUSIVE = HealthOutcome.FAIL, HealthOutcome.FIX, HealthOutcome.INCONCLUSIVE
NOT_KNOWN, LINE = HealthOutcome.NOT_KNOWN, HealthOutcome.LINE
SECOND = 10**9


def sound(index: int, **values: Any) -> DeviceHealth:
    """A device without a fault."""
    device = DeviceHealth(
        index=index,
        uuid="GPU-%d" % index,
        name="NVIDIA H100 80GB HBM3",
        pci_address="0000:%d0:00.0" % (index + 1),
        time=1000.0,
        mig_enabled=False,
        ecc_enabled=True,
        row_remap_pending=False,
        row_remap_failed=False,
        recovery_action=0,
        pcie_generation=1,
        pcie_width=16,
        pcie_generation_max=5,
        pcie_width_max=16,
        nvlinks_up=tuple(range(18)),
        nvlinks_down=(),
        fabric_state=3,
        fabric_status=0,
        fabric_health=1,
    )
    return replace(device, **{**dict.fromkeys(COUNTERS, 7), **values})


BEFORE = [sound(0), sound(1)]


def findings_of(*after: DeviceHealth, **options: Any) -> list[tuple[str, HealthOutcome, Any]]:
    """Kind, outcome and UUID of each finding."""
    found = judge_health(options.pop("before", BEFORE), after, **options)
    assert all(finding.reason for finding in found)
    return [(finding.kind, finding.outcome, finding.uuid) for finding in found]


def xids(*codes: int, address: str = "0000:20:00") -> XidLog:
    return XidLog(tuple(Xid(code, address, 1, 100 + code, "NVRM: Xid") for code in codes), 999)


def test_sound_devices_have_no_findings() -> None:
    assert findings_of(*BEFORE, xids=XidLog(last=5)) == []


@pytest.mark.parametrize(
    ("fault", "kind", "outcome"),
    [
        ({"row_remap_failed": True}, "row-remap-failed", FAIL),
        ({"row_remap_pending": True}, "row-remap-pending", FIX),
        ({"ecc_uncorrected": 8}, "ecc-uncorrected", FIX),
        ({"ecc_uncorrected": 0, "ecc_uncorrected_aggregate": 8}, "ecc-uncorrected", FIX),  # the driver was reloaded
        ({"ecc_corrected": 8}, "ecc-corrected", LINE),
        ({"recovery_action": 1}, "recovery-action-1", FIX),
        ({"recovery_action": 2}, "recovery-action-2", FIX),
        ({"recovery_action": 3}, "recovery-action-3", INCONCLUSIVE),
        ({"recovery_action": 4}, "recovery-action-4", FAIL),
        ({"recovery_action": 5}, "recovery-action-5", INCONCLUSIVE),
        ({"recovery_action": 6}, "recovery-action-6", FIX),
        ({"recovery_action": 7}, "recovery-action-7", FIX),
        ({"recovery_action": 8}, "recovery-action-8", INCONCLUSIVE),
        ({"nvlinks_up": tuple(range(17)), "nvlinks_down": (17,)}, "nvlink-down", FAIL),
        ({"nvlink_recoveries_failed": 8}, "nvlink-recovery-failed", INCONCLUSIVE),
        ({"nvlink_crc_errors": 7 + 1000, "time": 1010.0}, "nvlink-crc", INCONCLUSIVE),
        ({"nvlink_crc_errors": 7 + 999, "time": 1010.0}, "nvlink-crc", LINE),
        ({"nvlink_replays": 8}, "nvlink-replays", LINE),
        ({"nvlink_recoveries": 8}, "nvlink-replays", LINE),
        ({"pcie_replays": 8}, "pcie-replays", LINE),
        ({"pcie_generation_loaded": 4}, "pcie-below-maximum", LINE),
        ({"pcie_width_loaded": 8}, "pcie-below-maximum", LINE),
        ({"slowed_sw_thermal_ns": 7 + SECOND}, "slowed-by-heat", INCONCLUSIVE),
        ({"slowed_hw_thermal_ns": 7 + SECOND}, "slowed-by-heat", INCONCLUSIVE),
        ({"slowed_thermal_ns": 7 + SECOND}, "slowed-by-heat", INCONCLUSIVE),
        ({"slowed_power_brake_ns": 7 + SECOND}, "slowed-by-power-brake", INCONCLUSIVE),
        ({"slowed_power_cap_ns": 7 + SECOND}, "slowed-by-power-limit", LINE),
        ({"fabric_state": 2}, "fabric-unhealthy", INCONCLUSIVE),
        ({"fabric_status": 999}, "fabric-unhealthy", INCONCLUSIVE),
        ({"fabric_health": 2}, "fabric-unhealthy", INCONCLUSIVE),
        ({"fabric_health": 3}, "fabric-unhealthy", INCONCLUSIVE),
        ({"unanswered": "GPU is lost"}, "gpu-lost", FAIL),
        ({"unanswered": NOT_FOUND}, "gpu-lost", FAIL),
        ({"unanswered": "GPU requires reset"}, "reset-required", FIX),
        ({"unanswered": "unknown error"}, "no-answer", INCONCLUSIVE),
        ({"unanswered": "no answer in 60 s"}, "no-answer", INCONCLUSIVE),
        ({"unanswered": "NVML: Driver Not Loaded"}, "no-answer", INCONCLUSIVE),
    ],
)
def test_a_fault_of_one_device(fault: dict[str, Any], kind: str, outcome: HealthOutcome) -> None:
    assert findings_of(sound(0), sound(1, **fault)) == [(kind, outcome, "GPU-1")]


@pytest.mark.parametrize(
    "innocent",
    [
        {"slowed_sw_thermal_ns": 7 + SECOND - 1},
        {"ecc_uncorrected": 0, "ecc_uncorrected_aggregate": 7},
        {"pcie_replays": 0},
        {"pcie_generation": 4},  # an idle device lowers it
        {"pcie_generation_loaded": 6},  # above its maximum: of a virtual machine
        {"row_remap_uncorrected": 8},
    ],
)
def test_what_is_no_fault(innocent: dict[str, Any]) -> None:
    assert findings_of(sound(0), sound(1, **innocent)) == []


def test_counters_of_before_are_not_this_runs_and_states_are() -> None:
    old = sound(1, ecc_uncorrected=3, row_remap_failed=True)
    assert findings_of(sound(0), old, before=[sound(0), old]) == [("row-remap-failed", FAIL, "GPU-1")]
    assert findings_of(*BEFORE, before=[sound(0), replace(old, ecc_uncorrected=7)]) == []


@pytest.mark.parametrize(
    ("codes", "outcomes"),
    [
        ((79,), [FAIL]),
        ((64, 95, 140), [FAIL, FAIL, FAIL]),
        ((48,), [FAIL]),
        ((48, 94), [LINE, FIX]),
        ((119, 120), [FIX, FIX]),
        ((74,), [INCONCLUSIVE]),
        ((62, 149), [INCONCLUSIVE, INCONCLUSIVE]),
        ((13, 31, 43, 45, 154, 999), [LINE] * 6),
    ],
)
def test_a_line_of_the_kernel_log(codes: tuple[int, ...], outcomes: list[HealthOutcome]) -> None:
    expected = [("xid-%d" % code, outcome, "GPU-1") for code, outcome in zip(codes, outcomes)]
    assert findings_of(*BEFORE, xids=xids(*codes)) == expected


def test_a_line_is_of_the_device_that_had_its_address() -> None:
    assert findings_of(*BEFORE, xids=xids(79, address="0000:99:00")) == []
    lost = DeviceHealth(index=1, uuid="GPU-1", unanswered=NOT_FOUND)
    assert findings_of(sound(0), lost, xids=xids(79)) == [("xid-79", FAIL, "GPU-1"), ("gpu-lost", FAIL, "GPU-1")]


def test_errors_that_an_earlier_record_has_too_fail() -> None:
    faulty = sound(1, ecc_uncorrected=8)
    found = findings_of(sound(0), faulty, xids=xids(94), earlier_uncorrected={"GPU-1"})
    assert found == [("xid-94", FAIL, "GPU-1"), ("ecc-uncorrected", FAIL, "GPU-1")]
    assert findings_of(sound(0), faulty, earlier_uncorrected={"GPU-0"}) == [("ecc-uncorrected", FIX, "GPU-1")]


def test_fewer_links_than_a_neighbour() -> None:
    fewer = sound(1, nvlinks_up=tuple(range(12)), nvlinks_down=())
    assert findings_of(sound(0), fewer, before=[sound(0), fewer]) == [("nvlink-fewer", INCONCLUSIVE, "GPU-1")]
    other_model = replace(fewer, name="NVIDIA H100 NVL")
    assert findings_of(sound(0), other_model, before=[sound(0), other_model]) == []


def test_links_of_which_none_was_ever_up_are_a_line() -> None:
    bare = [sound(index, nvlinks_up=(), nvlinks_down=tuple(range(12))) for index in (0, 1)]
    assert findings_of(*bare, before=bare) == [("nvlink-none", LINE, "GPU-0"), ("nvlink-none", LINE, "GPU-1")]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        (("ecc_uncorrected",), "ecc-not-known"),
        (("row_remap_failed",), "row-remap-not-known"),
        (("recovery_action",), "recovery-action-not-known"),
        (("nvlinks_up", "nvlinks_down"), "nvlink-not-known"),
        (("fabric_state", "fabric_status", "fabric_health"), "fabric-not-known"),
        (("slowed_sw_thermal_ns",), "slowed-not-known"),
    ],
)
def test_what_was_known_before_and_is_refused_after(fields: tuple[str, ...], kind: str) -> None:
    refused = sound(1, **dict.fromkeys(fields), refusals=dict.fromkeys(fields, NO_PERMISSION))
    assert findings_of(sound(0), refused) == [(kind, NOT_KNOWN, "GPU-1")]


def test_a_state_counts_as_last_read() -> None:
    failed = sound(1, row_remap_failed=True)
    refused = sound(1, row_remap_failed=None, refusals={"row_remap_failed": NO_PERMISSION})
    stalled = DeviceHealth(index=1, uuid="GPU-1", unanswered="no answer in 60 s")
    row_remap = ("row-remap-failed", FAIL, "GPU-1")
    found = findings_of(sound(0), refused, before=[sound(0), failed])
    assert found == [row_remap, ("row-remap-not-known", NOT_KNOWN, "GPU-1")]
    found = findings_of(sound(0), stalled, before=[sound(0), failed])
    assert found == [row_remap, ("no-answer", INCONCLUSIVE, "GPU-1")]


def test_a_device_that_was_not_read_again() -> None:
    found = findings_of(sound(0))
    assert {(outcome, uuid) for _, outcome, uuid in found} == {(NOT_KNOWN, "GPU-1")}


@pytest.mark.parametrize("before", [[], [DeviceHealth(index=1, uuid="GPU-1", unanswered="no answer in 5 s")]])
def test_a_device_that_was_not_read_before(before: list[DeviceHealth]) -> None:
    failed = sound(1, row_remap_failed=True)
    expected = [("row-remap-failed", FAIL, "GPU-1"), ("before-not-known", NOT_KNOWN, "GPU-1")]
    assert findings_of(failed, before=before) == expected


def test_a_device_without_ecc_and_a_machine_without_its_log() -> None:
    names = ("ecc_uncorrected", "row_remap_failed", "row_remap_pending")
    geforce = [sound(0, **dict.fromkeys(names), refusals=dict.fromkeys(names, ECC_OFF), nvlinks_up=None)]
    found = judge_health(geforce, geforce, XidLog(refusal=NO_PERMISSION))
    expected = [("ecc-not-known", "GPU-0"), ("row-remap-not-known", "GPU-0"), ("xid-not-known", None)]
    assert [(finding.kind, finding.uuid) for finding in found] == expected
    assert {finding.outcome for finding in found} == {NOT_KNOWN}


def test_devices_whose_health_nobody_can_read() -> None:
    unread = [DeviceHealth(index=0, uuid="GPU-0", unanswered="nvidia-smi was not found on PATH")]
    assert findings_of(*unread, before=unread) == [("health-not-known", NOT_KNOWN, "GPU-0")]


def test_each_field_counts_or_is_a_state() -> None:
    assert set(COUNTERS) | set(STATES) == set(READ)
    assert not set(COUNTERS) & set(STATES)


def test_json_holds_what_was_read() -> None:
    device = sound(1, refusals={"ecc_corrected": NO_PERMISSION}, ecc_corrected=None)
    values = device.to_dict()
    assert "ecc_corrected" not in values
    assert values["nvlinks_up"] == list(range(18))
    assert device_health({**values, "of a later version": 1}) == device
