"""Judges the health of devices from two readings, before and after a run, and from the kernel log in between.

The result is a list of findings, each with an outcome for the acceptance of the machine: FAIL for a fault without an
innocent explanation, and weaker outcomes for others. Of counters and log lines, only those count that were added
between the readings; of states, the last one counts.

The meaning of the numbers is from NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors) and from the GPU health
checks of DCGM 4.6.0. Which of them are errors of a program is from NVIDIA/k8s-device-plugin (internal/rm/health.go).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Collection, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from flagbench_core.health.change import HealthChange, health_change
from flagbench_core.health.kernel_log import Xid, XidLog, same_device
from flagbench_core.health.reading import (
    LOST,
    NO_ANSWER,
    NOT_FOUND,
    RESET_REQUIRED,
    UNKNOWN_ERROR,
    DeviceHealth,
)

SLOWED_SECONDS = 1.0
"""The shortest time of lowered clocks that is reported: it is not exactly 0 on idle devices (DCGM issue 242)."""
CRC_ERRORS_PER_SECOND = 100.0
"""The rate of checksum errors on a device's NVLinks from which on DCGM 4.6.0 warns of them."""

# Remedies, as a person reads them.

_RESET = "reset the device, such as with nvidia-smi --gpu-reset, and accept the machine again"
_REPLACE = "take the machine out of service and have the device examined"
_REBOOT = "reboot the machine and accept it again"
_UPDATE_DRIVER = "reset the device or reboot, and update the driver; if it happens again, have the device examined"
_EXAMINE_LINK = "accept the machine again; if it happens again, have device and link examined"
_START_FABRIC_MANAGER = "start or restart NVIDIA's fabric manager (systemctl status nvidia-fabricmanager), or reboot"
_LOOK_UP = "look the number up in NVIDIA's Xid catalogue, and accept the machine again"
_CHECK_COOLING = "look after cooling and power supply, and accept the machine again"
_DOUBLE_BIT = 48
"""The Xid (number of a driver's error) of a memory error of two bits."""
_CONTAINED = 94
"""The Xid of a contained memory error. The driver may write _DOUBLE_BIT for the same error too."""


class HealthOutcome(str, Enum):
    """What a finding means for the acceptance of the machine."""

    FAIL = "FAIL"
    """The device is faulty."""
    FIX = "FIX"
    """Somebody has to do something, such as reset the device, and then accept the machine again."""
    INCONCLUSIVE = "INCONCLUSIVE"
    """There may be a fault."""
    NOT_KNOWN = "NOT_KNOWN"
    """It could not be read whether there is a fault."""
    LINE = "LINE"
    """A fact for the reader, which does not affect the acceptance."""


def ends_soak(outcome: str) -> bool:
    """Whether a finding with this outcome ends a soak (a long acceptance in laps): no further lap would change it."""
    return outcome in (HealthOutcome.FAIL, HealthOutcome.FIX)


@dataclass(frozen=True)
class HealthFinding:
    """A finding about one device, or about the machine if `uuid` and `index` are None."""

    kind: str
    """The id of the rule, such as `xid-79`, `row-remap-failed`, `ecc-uncorrected` or `nvlink-down`."""
    outcome: HealthOutcome
    reason: str
    """What was found, for a person."""
    remedy: Optional[str] = None
    """What to do about it, for a person; None if there is nothing to do."""
    uuid: Optional[str] = None
    index: Optional[int] = None
    """The index of the device in the last reading: in a run, its rank within the node."""


class _DeviceFinding(NamedTuple):
    """The fields of a HealthFinding except the device, which all rules for one device leave out."""

    kind: str
    outcome: HealthOutcome
    reason: str
    remedy: Optional[str] = None


class _Rule(NamedTuple):
    """What a number of NVIDIA's driver means."""

    outcome: HealthOutcome
    meaning: str
    remedy: Optional[str]


_FAIL, _FIX = HealthOutcome.FAIL, HealthOutcome.FIX
_INCONCLUSIVE, _LINE = HealthOutcome.INCONCLUSIVE, HealthOutcome.LINE

_RESET_CODES = (46, 62, 109, 110, 136, 143, 155, 156, 158)
_NVLINK_CODES = (144, 145, 146, 147, 148, 149, 150)
_PROGRAM_CODES = (13, 31, 43, 45, 68)
_XIDS: Dict[int, _Rule] = {
    48: _Rule(_FAIL, "uncorrectable memory error", _REPLACE),
    64: _Rule(_FAIL, "a row of memory could not be replaced", _REPLACE),
    79: _Rule(_FAIL, "it has fallen off the bus", _REPLACE),
    95: _Rule(_FAIL, "uncontained memory error", _REPLACE),
    140: _Rule(_FAIL, "unrecovered memory error", _REPLACE),
    94: _Rule(_FIX, "contained memory error", _RESET),
    119: _Rule(_FIX, "its system processor (GSP) did not answer the driver: device or driver", _UPDATE_DRIVER),
    120: _Rule(_FIX, "error of its system processor (GSP): device or driver", _UPDATE_DRIVER),
    74: _Rule(_INCONCLUSIVE, "NVLink error, of which the other end may be the cause", _EXAMINE_LINK),
    63: _Rule(_INCONCLUSIVE, "a row of memory was marked for replacement", _RESET),
    92: _Rule(_INCONCLUSIVE, "many corrected memory errors", _EXAMINE_LINK),
    **{code: _Rule(_INCONCLUSIVE, "its driver asks for a reset", _RESET) for code in _RESET_CODES},
    **{code: _Rule(_INCONCLUSIVE, "NVLink error", _EXAMINE_LINK) for code in _NVLINK_CODES},
    154: _Rule(_LINE, "the recovery action changed", None),
    **{code: _Rule(_LINE, "error of a program", None) for code in _PROGRAM_CODES},
}
"""The rules by Xid, the number of an error in the kernel log."""
_OTHER_XID = _Rule(_LINE, "see NVIDIA's Xid catalogue", _LOOK_UP)

_RECOVERY_ACTIONS: Dict[int, _Rule] = {
    1: _Rule(_FIX, "its driver asks for a reset", _RESET),
    2: _Rule(_FIX, "its driver asks for a reboot", _REBOOT),
    3: _Rule(_INCONCLUSIVE, "its driver asks to stop traffic between devices", _EXAMINE_LINK),
    4: _Rule(_FAIL, "its driver asks to drain and reset it", _REPLACE),
    5: _Rule(_INCONCLUSIVE, "its driver asks for a reset of its bus or of the IMEX domain", _REBOOT),
    6: _Rule(_FIX, "its driver asks for a reset of its bus", _REBOOT),
    7: _Rule(_FIX, "its driver asks for a reboot of the system", _REBOOT),
}
"""The rules by nvmlDeviceGpuRecoveryAction_t; the meaning of 5 depends on the version of the driver."""

_FABRIC_NOT_STARTED, _FABRIC_IN_PROGRESS, _FABRIC_COMPLETED = 1, 2, 3
"""Values of nvmlGpuFabricState_t: whether a device has joined the NVLink fabric of its machine."""
_FABRIC_UNHEALTHY, _FABRIC_LIMITED = 2, 3
"""Values of nvmlGpuFabricHealthSummary."""


class _Group(NamedTuple):
    """Fields of DeviceHealth that are reported together if they are not known."""

    description: str
    fields: Tuple[str, ...]


_HEAT = ("slowed_sw_thermal_ns", "slowed_hw_thermal_ns", "slowed_thermal_ns")
_GROUPS: Mapping[str, _Group] = {
    "ecc": _Group("errors of memory", ("ecc_uncorrected",)),
    "row-remap": _Group(
        "rows of memory that were or could not be replaced", ("row_remap_failed", "row_remap_pending")
    ),
    "recovery-action": _Group("what its driver asks for", ("recovery_action",)),
    "nvlink": _Group("NVLink", ("nvlinks_up",)),
    "fabric": _Group("the NVLink fabric", ("fabric_state", "fabric_health")),
    "pcie": _Group("the PCIe link", ("pcie_generation", "pcie_width")),
    "slowed": _Group("how long its clocks were lowered", (*_HEAT, "slowed_power_brake_ns")),
}
"""The groups by the first part of the kind of their finding: `ecc-not-known`."""
_ALWAYS_REPORTED = ("ecc", "row-remap", "recovery-action")
"""The groups that are reported whenever they are not known. Others are reported only if they were known before."""


def judge_health(
    before: Sequence[DeviceHealth],
    after: Sequence[DeviceHealth],
    xids: Optional[XidLog] = None,
    earlier_uncorrected: Collection[str] = (),
) -> List[HealthFinding]:
    """The findings from the readings before and after, device by device in the order of the last reading.

    A caller that has a single reading, such as a preflight, passes it twice: then only states are judged.

    Args:
        before: the first reading of each device.
        after: the last reading. A device that it lacks could not be read again.
        xids: the lines of the kernel log that were added in between; None if the host has no such log.
        earlier_uncorrected: UUIDs of devices for which an earlier record has uncorrected errors or Xid 94.
    """
    findings: List[HealthFinding] = []
    for device in _last_readings(before, after):
        first = _find_same(device, before)
        device_xids: List[Xid] = []
        if xids is not None:
            device_xids = [xid for xid in xids.xids if _concerns(xid, device, first)]
        findings += _judge_device(first, device, after, device_xids, earlier_uncorrected)
    if xids is not None and xids.refusal is not None:
        reason = "the kernel log cannot be read (%s)" % xids.refusal
        remedy = "on the host, as root or with CAP_SYSLOG, it can be read"
        findings.append(HealthFinding("xid-not-known", HealthOutcome.NOT_KNOWN, reason, remedy))
    return findings


def uncorrected_errors(before: DeviceHealth, after: DeviceHealth) -> Optional[int]:
    """How many uncorrected errors of memory were added between two readings; None if that is not known."""
    return health_change(before, after).rises.get("ecc_uncorrected")


def _last_readings(before: Sequence[DeviceHealth], after: Sequence[DeviceHealth]) -> List[DeviceHealth]:
    """The last reading of each device. A device that is only in the first reading has no values in its last."""
    devices = list(after)
    for device in before:
        if _find_same(device, after) is None:
            devices.append(DeviceHealth(device.index, device.uuid, device.name, device.pci_address))
    return devices


def _find_same(device: DeviceHealth, reading: Sequence[DeviceHealth]) -> Optional[DeviceHealth]:
    """The same device in another reading: the one with its UUID, or with its index if it has no UUID."""
    for candidate in reading:
        if device.uuid is not None and candidate.uuid == device.uuid:
            return candidate
        if device.uuid is None and candidate.index == device.index:
            return candidate
    return None


def _concerns(xid: Xid, device: DeviceHealth, first: Optional[DeviceHealth]) -> bool:
    """Whether an error is one of this device."""
    if same_device(xid.pci_address, device.pci_address):
        return True
    # The last reading of a lost device has no address.
    return first is not None and same_device(xid.pci_address, first.pci_address)


def _judge_device(
    first: Optional[DeviceHealth],
    device: DeviceHealth,
    devices: Sequence[DeviceHealth],
    xids: Sequence[Xid],
    earlier: Collection[str],
) -> List[HealthFinding]:
    """The findings about one device.

    Args:
        first: its first reading.
        device: its last reading.
        devices: the last readings of all devices.
        xids: the errors of this device in the kernel log.
        earlier: UUIDs of devices that had uncorrected errors before.
    """
    recurs = device.uuid in earlier
    change = health_change(first or device, device)
    found = [*_judge_xids(xids, recurs), *_judge_memory(change, recurs), *_judge_states(change)]
    if device.answered:
        found += _judge_links(change, first, device, devices)
        found += _judge_slowed(change)
        found += _judge_unknown(first, device)
    else:
        found.append(_judge_silence(device, first))
    findings = []
    for kind, outcome, reason, remedy in found:
        findings.append(HealthFinding(kind, outcome, reason, remedy, device.uuid, device.index))
    return findings


def _judge_silence(device: DeviceHealth, first: Optional[DeviceHealth]) -> _DeviceFinding:
    """The finding for a device that does not answer."""
    reason = device.unanswered
    if reason == RESET_REQUIRED:
        return _DeviceFinding("reset-required", _FIX, "its driver asks for a reset", _RESET)
    if reason == LOST:
        return _DeviceFinding("gpu-lost", _FAIL, "the driver has lost it", _REPLACE)
    if reason == NOT_FOUND and first is not None and first.answered:
        return _DeviceFinding(
            "gpu-lost", _FAIL, "it was there before, and the driver does not list it any more", _REPLACE
        )
    is_silent = reason is not None and reason.startswith((NO_ANSWER, UNKNOWN_ERROR))
    answered_alike = first is not None and first.unanswered == reason
    if answered_alike and not is_silent:  # it refused already before the run
        return _DeviceFinding("health-not-known", HealthOutcome.NOT_KNOWN, "its health cannot be read: %s" % reason)
    remedy = "accept the machine again; if it does not answer again, reset it or reboot"
    return _DeviceFinding("no-answer", _INCONCLUSIVE, "it does not answer: %s" % reason, remedy)


def _judge_xids(xids: Sequence[Xid], recurs: bool) -> Iterator[_DeviceFinding]:
    """Findings from the kernel log. `recurs`: whether the device had uncorrected errors in an earlier record."""
    codes = {xid.code for xid in xids}
    for xid in xids:
        rule = _XIDS.get(xid.code, _OTHER_XID)
        reason = "Xid %d in the kernel log, %d times: %s" % (xid.code, xid.count, rule.meaning)
        outcome, remedy = rule.outcome, rule.remedy
        if xid.code == _DOUBLE_BIT and _CONTAINED in codes:
            outcome, remedy = _LINE, None
        if xid.code == _CONTAINED and recurs:
            outcome, remedy = _FAIL, _REPLACE
            reason += ", and an earlier record of this device has such errors too"
        yield _DeviceFinding("xid-%d" % xid.code, outcome, reason, remedy)


def _judge_memory(change: HealthChange, recurs: bool) -> Iterator[_DeviceFinding]:
    """Findings about errors of memory, and about rows of memory to be replaced; `recurs` as in `_judge_xids`."""
    uncorrected = change.rises.get("ecc_uncorrected", 0)
    if uncorrected and recurs:
        reason = "%d uncorrected errors of memory were added, and an earlier record of this device has them too"
        yield _DeviceFinding("ecc-uncorrected", _FAIL, reason % uncorrected, _REPLACE)
    elif uncorrected:
        reason = "%d uncorrected errors of memory were added"
        yield _DeviceFinding("ecc-uncorrected", _FIX, reason % uncorrected, _RESET)
    corrected = change.rises.get("ecc_corrected", 0)
    if corrected:
        yield _DeviceFinding("ecc-corrected", _LINE, "%d corrected errors of memory were added" % corrected)
    if change.states.get("row_remap_failed"):
        yield _DeviceFinding("row-remap-failed", _FAIL, "a row of its memory could not be replaced", _REPLACE)
    if change.states.get("row_remap_pending"):
        yield _DeviceFinding("row-remap-pending", _FIX, "a row of its memory is replaced at the next reset", _RESET)


def _judge_states(change: HealthChange) -> Iterator[_DeviceFinding]:
    """Findings about what the driver asks for, and about the device in the NVLink fabric of its machine."""
    action = change.states.get("recovery_action", 0)
    if action in _RECOVERY_ACTIONS:
        outcome, reason, remedy = _RECOVERY_ACTIONS[action]
        yield _DeviceFinding("recovery-action-%d" % action, outcome, reason, remedy)
    elif action:
        reason = "its driver asks for recovery action %d, which this version does not know" % action
        yield _DeviceFinding("recovery-action-%d" % action, _INCONCLUSIVE, reason, _REBOOT)
    fault = _fabric_fault(change)
    if fault is not None:
        yield _DeviceFinding("fabric-unhealthy", _INCONCLUSIVE, fault, _START_FABRIC_MANAGER)


def _fabric_fault(change: HealthChange) -> Optional[str]:
    """What is wrong with the device in the NVLink fabric, for a person; None if nothing is."""
    state = change.states.get("fabric_state")
    status = change.states.get("fabric_status")
    health = change.states.get("fabric_health")
    if state in (_FABRIC_NOT_STARTED, _FABRIC_IN_PROGRESS):
        return "it has not joined the NVLink fabric"
    if state == _FABRIC_COMPLETED and status:
        return "it joined the NVLink fabric with error %d" % status
    if health == _FABRIC_UNHEALTHY:
        return "its NVLink fabric is unhealthy, of which the other end may be the cause"
    if health == _FABRIC_LIMITED:
        return "its NVLink fabric has limited capacity"
    return None


def _judge_links(
    change: HealthChange, first: Optional[DeviceHealth], device: DeviceHealth, devices: Sequence[DeviceHealth]
) -> Iterator[_DeviceFinding]:
    """Findings about NVLink and PCIe; the arguments are those of `_judge_device`."""
    yield from _judge_nvlinks_up(change, device, devices)
    failed = change.rises.get("nvlink_recoveries_failed", 0)
    if failed:
        reason = "its NVLinks failed to recover %d times" % failed
        yield _DeviceFinding("nvlink-recovery-failed", _INCONCLUSIVE, reason, _EXAMINE_LINK)
    crc = change.rises.get("nvlink_crc_errors", 0)
    if crc and crc >= CRC_ERRORS_PER_SECOND * _seconds_between(first, device):
        yield _DeviceFinding("nvlink-crc", _INCONCLUSIVE, "its NVLinks had %d CRC errors" % crc, _EXAMINE_LINK)
    elif crc:
        yield _DeviceFinding("nvlink-crc", _LINE, "its NVLinks had %d CRC errors" % crc)
    replays = change.rises.get("nvlink_replays", 0) + change.rises.get("nvlink_recoveries", 0)
    if replays:
        yield _DeviceFinding("nvlink-replays", _LINE, "its NVLinks had %d replays and recoveries" % replays)
    if change.rises.get("pcie_replays", 0):
        yield _DeviceFinding("pcie-replays", _LINE, "its PCIe link had %d replays" % change.rises["pcie_replays"])
    shortfall = _pcie_shortfall(device)
    if shortfall is not None:
        yield _DeviceFinding("pcie-below-maximum", _LINE, shortfall)


def _judge_nvlinks_up(
    change: HealthChange, device: DeviceHealth, devices: Sequence[DeviceHealth]
) -> Iterator[_DeviceFinding]:
    """The finding about which NVLinks of a device are up, if there is one."""
    most = _most_links(device, devices)
    up = device.nvlinks_up
    if change.nvlinks_lost:
        names = ", ".join(map(str, change.nvlinks_lost))
        yield _DeviceFinding("nvlink-down", _FAIL, "NVLink %s was up before and is down after" % names, _REPLACE)
    elif up is not None and len(up) < most:
        reason = "%d of its NVLinks are up, and %d of another device of its model" % (len(up), most)
        yield _DeviceFinding("nvlink-fewer", _INCONCLUSIVE, reason, _EXAMINE_LINK)
    elif up == () and device.nvlinks_down:
        yield _DeviceFinding("nvlink-none", _LINE, "none of its %d NVLinks is up" % len(device.nvlinks_down))


def _most_links(device: DeviceHealth, devices: Sequence[DeviceHealth]) -> int:
    """The number of NVLinks that are up on the device of the same model with the most of them; 0 if none is known."""
    counts = [0]
    if device.name is not None:
        for candidate in devices:
            if candidate.name == device.name and candidate.nvlinks_up is not None:
                counts.append(len(candidate.nvlinks_up))
    return max(counts)


def _seconds_between(first: Optional[DeviceHealth], device: DeviceHealth) -> float:
    """Seconds between the two readings, at least 1; also 1 if the times of the readings are not known."""
    if first is None or first.time is None or device.time is None:
        return 1.0
    return max(1.0, device.time - first.time)


def _pcie_shortfall(device: DeviceHealth) -> Optional[str]:
    """How the PCIe link under load was below what device and system support, for a person.

    None if it was not, or if that is not known. Virtual machines may report more than the maximum.
    """
    for quantity, value, maximum in (
        ("generation", device.pcie_generation_loaded, device.pcie_generation_max),
        ("width", device.pcie_width_loaded, device.pcie_width_max),
    ):
        if value is not None and maximum is not None and value < maximum:
            return "PCIe %s %d under load, and device and system can have %d" % (quantity, value, maximum)
    return None


def _judge_slowed(change: HealthChange) -> Iterator[_DeviceFinding]:
    """Findings about how long heat or the machine lowered the clocks. A power limit is no fault of the device."""
    rises = change.rises
    heat = rises.get("slowed_sw_thermal_ns", 0) + rises.get("slowed_hw_thermal_ns", 0)
    # A driver counts heat in these two or in the third, or in all of them.
    heat_seconds = max(heat, rises.get("slowed_thermal_ns", 0)) / 1e9
    if heat_seconds >= SLOWED_SECONDS:
        yield _DeviceFinding(
            "slowed-by-heat", _INCONCLUSIVE, "heat lowered its clocks for %.1f s" % heat_seconds, _CHECK_COOLING
        )
    brake_seconds = rises.get("slowed_power_brake_ns", 0) / 1e9
    if brake_seconds >= SLOWED_SECONDS:
        reason = "the machine's power brake lowered its clocks for %.1f s" % brake_seconds
        yield _DeviceFinding("slowed-by-power-brake", _INCONCLUSIVE, reason, _CHECK_COOLING)
    cap_seconds = rises.get("slowed_power_cap_ns", 0) / 1e9
    if cap_seconds >= SLOWED_SECONDS:
        yield _DeviceFinding(
            "slowed-by-power-limit", _LINE, "its power limit lowered its clocks for %.1f s" % cap_seconds
        )


def _judge_unknown(first: Optional[DeviceHealth], device: DeviceHealth) -> Iterator[_DeviceFinding]:
    """Findings about values of a device that could not be read, one for each group."""
    if first is None or not first.answered:
        reason = "it was not read before, so that nothing is known of what its counters added"
        yield _DeviceFinding("before-not-known", HealthOutcome.NOT_KNOWN, reason)
    for group_name, group in _GROUPS.items():
        unknown = [name for name in group.fields if getattr(device, name) is None]
        known_before: List[str] = []
        if first is not None:
            known_before = [name for name in unknown if getattr(first, name) is not None]
        kind = "%s-not-known" % group_name
        if known_before:
            refusal = _first_refusal(device, known_before)
            reason = "%s: known before, and not after (%s)" % (group.description, refusal)
            yield _DeviceFinding(kind, HealthOutcome.NOT_KNOWN, reason)
        elif group_name in _ALWAYS_REPORTED and len(unknown) == len(group.fields):
            reason = "%s: not known (%s)" % (group.description, _first_refusal(device, unknown))
            yield _DeviceFinding(kind, HealthOutcome.NOT_KNOWN, reason)


def _first_refusal(device: DeviceHealth, names: Sequence[str]) -> str:
    """Why the first of these fields that has a refusal was not read."""
    for name in names:
        if name in device.refusals:
            return device.refusals[name]
    return "it was not read"
