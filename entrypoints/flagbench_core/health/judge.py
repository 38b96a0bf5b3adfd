"""What the health of devices means for an acceptance: FAIL for what has no innocent reason, else what to do or say.

Counters and log lines count by what was added between the readings, states as last read. Which number of NVIDIA's
driver means what: its Xid catalogue (docs.nvidia.com/deploy/xid-errors), the GPU health checks of DCGM 4.6.0, and the
application's own errors by NVIDIA/k8s-device-plugin (internal/rm/health.go).
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
"""For less than this, lowered clocks are not counted: counters of idle devices are not exactly 0 (DCGM issue 242)."""
CRC_ERRORS_PER_SECOND = 100.0
"""Of a device's links, from which on DCGM 4.6.0 warns of them."""

_RESET_AGAIN = "reset the device, such as with nvidia-smi --gpu-reset, and accept the machine again"
_REPLACE = "take the machine out of service and have the device examined"
_REBOOT = "reboot the machine and accept it again"
_DRIVER = "reset the device or reboot, and update the driver; if it happens again, have the device examined"
_LOOK = "accept the machine again; if it happens again, have device and link examined"
_FABRIC = "start or restart NVIDIA's fabric manager (systemctl status nvidia-fabricmanager), or reboot"
_CATALOGUE = "look the number up in NVIDIA's Xid catalogue, and accept the machine again"
_COOL = "look after cooling and power supply, and accept the machine again"


class HealthOutcome(str, Enum):
    """What follows from a finding."""

    FAIL = "FAIL"
    FIX = "FIX"
    """Something is to be done, after which the machine can be accepted again."""
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_KNOWN = "NOT_KNOWN"
    """Nobody could look."""
    LINE = "LINE"
    """A fact for the reader, which decides nothing."""


def ends_soak(outcome: str) -> bool:
    """Whether a finding with that outcome ends a soak: no further lap would change it."""
    return outcome in (HealthOutcome.FAIL, HealthOutcome.FIX)


@dataclass(frozen=True)
class HealthFinding:
    """One thing that was found of a device, or of the machine where `uuid` and `index` are None."""

    kind: str
    """The rule: `xid-79`, `row-remap-failed`, `ecc-uncorrected`, `nvlink-down` ..."""
    outcome: HealthOutcome
    reason: str
    remedy: Optional[str] = None
    uuid: Optional[str] = None
    index: Optional[int] = None
    """The place of the device in the last reading: in a run, its rank within the node."""


class _Verdict(NamedTuple):
    """A finding without its device."""

    kind: str
    outcome: HealthOutcome
    reason: str
    remedy: Optional[str] = None


class _XidRule(NamedTuple):
    outcome: HealthOutcome
    meaning: str
    remedy: Optional[str]


_FAIL, _FIX = HealthOutcome.FAIL, HealthOutcome.FIX
_INCONCLUSIVE, _LINE = HealthOutcome.INCONCLUSIVE, HealthOutcome.LINE

_RESET_CODES = (46, 62, 109, 110, 136, 143, 155, 156, 158)
_XIDS: Dict[int, _XidRule] = {
    48: _XidRule(_FAIL, "uncorrectable memory error", _REPLACE),
    64: _XidRule(_FAIL, "a row of memory could not be replaced", _REPLACE),
    79: _XidRule(_FAIL, "it has fallen off the bus", _REPLACE),
    95: _XidRule(_FAIL, "uncontained memory error", _REPLACE),
    140: _XidRule(_FAIL, "unrecovered memory error", _REPLACE),
    94: _XidRule(_FIX, "contained memory error", _RESET_AGAIN),
    119: _XidRule(_FIX, "its system processor (GSP) did not answer the driver: device or driver", _DRIVER),
    120: _XidRule(_FIX, "error of its system processor (GSP): device or driver", _DRIVER),
    74: _XidRule(_INCONCLUSIVE, "NVLink error, of which the other end may be the cause", _LOOK),
    63: _XidRule(_INCONCLUSIVE, "a row of memory was marked for replacement", _RESET_AGAIN),
    92: _XidRule(_INCONCLUSIVE, "many corrected memory errors", _LOOK),
    **{code: _XidRule(_INCONCLUSIVE, "its driver asks for a reset", _RESET_AGAIN) for code in _RESET_CODES},
    **{code: _XidRule(_INCONCLUSIVE, "NVLink error", _LOOK) for code in (144, 145, 146, 147, 148, 149, 150)},
    154: _XidRule(_LINE, "the recovery action changed", None),
    **{code: _XidRule(_LINE, "error of a program", None) for code in (13, 31, 43, 45, 68)},
}
_OTHER_XID = _XidRule(_LINE, "see NVIDIA's Xid catalogue", _CATALOGUE)
_DOUBLE_BIT, _CONTAINED = 48, 94
"""The first is also written of a contained error, beside the second."""

_RECOVERY: Dict[int, Tuple[HealthOutcome, str, str]] = {
    1: (_FIX, "its driver asks for a reset", _RESET_AGAIN),
    2: (_FIX, "its driver asks for a reboot", _REBOOT),
    3: (_INCONCLUSIVE, "its driver asks to stop traffic between devices", _LOOK),
    4: (_FAIL, "its driver asks to drain and reset it", _REPLACE),
    5: (_INCONCLUSIVE, "its driver asks for a reset of its bus or of the IMEX domain", _REBOOT),
    6: (_FIX, "its driver asks for a reset of its bus", _REBOOT),
    7: (_FIX, "its driver asks for a reboot of the system", _REBOOT),
}
"""By the value of the recovery action; 5 has two meanings, by the driver's version."""

_HEAT = ("slowed_sw_thermal_ns", "slowed_hw_thermal_ns", "slowed_thermal_ns")
_GROUPS: Mapping[str, Tuple[str, Tuple[str, ...]]] = {
    "ecc": ("errors of memory", ("ecc_uncorrected",)),
    "row-remap": ("rows of memory that were or could not be replaced", ("row_remap_failed", "row_remap_pending")),
    "recovery-action": ("what its driver asks for", ("recovery_action",)),
    "nvlink": ("NVLink", ("nvlinks_up",)),
    "fabric": ("the NVLink fabric", ("fabric_state", "fabric_health")),
    "pcie": ("the PCIe link", ("pcie_generation", "pcie_width")),
    "slowed": ("how long its clocks were lowered", (*_HEAT, "slowed_power_brake_ns")),
}
"""What can be unknown, in words, with the fields that answer it."""
_ALWAYS_ASKED = ("ecc", "row-remap", "recovery-action")
"""What every device is asked for; the others count as unknown only where they were known before."""


def judge_health(
    before: Sequence[DeviceHealth],
    after: Sequence[DeviceHealth],
    xids: Optional[XidLog] = None,
    earlier_uncorrected: Collection[str] = (),
) -> List[HealthFinding]:
    """What the readings before and after say, device by device in the order of the last one.

    With one reading alone, as of a preflight, give it twice: its states are judged, and nothing has been added.

    Args:
        before: the first reading, of each device.
        after: the last one. A device that it lacks was not read.
        xids: the lines of the kernel log that were added in between; None where the host has none for these devices.
        earlier_uncorrected: UUIDs of devices of which an earlier record has uncorrected errors or Xid 94.
    """
    findings: List[HealthFinding] = []
    for device in _last_readings(before, after):
        first = _same(device, before)
        lines = [] if xids is None else [xid for xid in xids.xids if _is_of(xid, device, first)]
        findings += _judge_device(first, device, after, lines, earlier_uncorrected)
    if xids is not None and xids.refusal is not None:
        reason = "the kernel log cannot be read (%s)" % xids.refusal
        remedy = "on the host, as root or with CAP_SYSLOG, it can be read"
        findings.append(HealthFinding("xid-not-known", HealthOutcome.NOT_KNOWN, reason, remedy))
    return findings


def uncorrected_errors(before: DeviceHealth, after: DeviceHealth) -> Optional[int]:
    """How many uncorrected errors of memory were added between two readings; None if that is not known."""
    return health_change(before, after).rises.get("ecc_uncorrected")


def _last_readings(before: Sequence[DeviceHealth], after: Sequence[DeviceHealth]) -> List[DeviceHealth]:
    """Each device as last read. One that is only in the first reading was not read again."""
    devices = list(after)
    for device in before:
        if _same(device, after) is None:
            devices.append(DeviceHealth(device.index, device.uuid, device.name, device.pci_address))
    return devices


def _same(device: DeviceHealth, others: Sequence[DeviceHealth]) -> Optional[DeviceHealth]:
    for other in others:
        if device.uuid is not None and other.uuid == device.uuid:
            return other
        if device.uuid is None and other.index == device.index:
            return other
    return None


def _is_of(xid: Xid, device: DeviceHealth, first: Optional[DeviceHealth]) -> bool:
    """Whether a line is of a device, whose address is only known of an earlier reading if it is lost."""
    if same_device(xid.pci_address, device.pci_address):
        return True
    return first is not None and same_device(xid.pci_address, first.pci_address)


def _judge_device(
    first: Optional[DeviceHealth],
    device: DeviceHealth,
    devices: Sequence[DeviceHealth],
    xids: Sequence[Xid],
    earlier: Collection[str],
) -> List[HealthFinding]:
    """The findings of one device; `first`: its first reading, `devices`: all of the last one."""
    again = device.uuid in earlier
    change = health_change(first or device, device)
    verdicts = [*_judge_xids(xids, again), *_judge_memory(change, again), *_judge_states(change)]
    if device.answered:
        verdicts += _judge_links(change, first, device, devices)
        verdicts += _judge_slowed(change)
        verdicts += _judge_unknown(first, device)
    else:
        verdicts.append(_judge_silence(device, first))
    findings = []
    for kind, outcome, reason, remedy in verdicts:
        findings.append(HealthFinding(kind, outcome, reason, remedy, device.uuid, device.index))
    return findings


def _judge_silence(device: DeviceHealth, first: Optional[DeviceHealth]) -> _Verdict:
    """What it means that a device does not answer."""
    reason = device.unanswered
    if reason == RESET_REQUIRED:
        return _Verdict("reset-required", _FIX, "its driver asks for a reset", _RESET_AGAIN)
    if reason == LOST:
        return _Verdict("gpu-lost", _FAIL, "the driver has lost it", _REPLACE)
    if reason == NOT_FOUND and first is not None and first.answered:
        return _Verdict("gpu-lost", _FAIL, "it was there before, and the driver does not list it any more", _REPLACE)
    silent = reason is not None and reason.startswith((NO_ANSWER, UNKNOWN_ERROR))
    if not silent and first is not None and first.unanswered == reason:
        return _Verdict("health-not-known", HealthOutcome.NOT_KNOWN, "its health cannot be read: %s" % reason)
    remedy = "accept the machine again; if it does not answer again, reset it or reboot"
    return _Verdict("no-answer", _INCONCLUSIVE, "it does not answer: %s" % reason, remedy)


def _judge_xids(xids: Sequence[Xid], again: bool) -> Iterator[_Verdict]:
    """What lines of the kernel log mean for their device."""
    codes = {xid.code for xid in xids}
    for xid in xids:
        rule = _XIDS.get(xid.code, _OTHER_XID)
        reason = "Xid %d in the kernel log, %d times: %s" % (xid.code, xid.count, rule.meaning)
        outcome, remedy = rule.outcome, rule.remedy
        if xid.code == _DOUBLE_BIT and _CONTAINED in codes:
            outcome, remedy = _LINE, None
        if xid.code == _CONTAINED and again:
            outcome, remedy = _FAIL, _REPLACE
            reason += ", and an earlier record of this device has such errors too"
        yield _Verdict("xid-%d" % xid.code, outcome, reason, remedy)


def _judge_memory(change: HealthChange, again: bool) -> Iterator[_Verdict]:
    """Errors of memory, and rows that were or could not be replaced."""
    uncorrected = change.rises.get("ecc_uncorrected", 0)
    if uncorrected and again:
        reason = "%d uncorrected errors of memory were added, and an earlier record of this device has them too"
        yield _Verdict("ecc-uncorrected", _FAIL, reason % uncorrected, _REPLACE)
    elif uncorrected:
        reason = "%d uncorrected errors of memory were added"
        yield _Verdict("ecc-uncorrected", _FIX, reason % uncorrected, _RESET_AGAIN)
    corrected = change.rises.get("ecc_corrected", 0)
    if corrected:
        yield _Verdict("ecc-corrected", _LINE, "%d corrected errors of memory were added" % corrected)
    if change.states.get("row_remap_failed"):
        yield _Verdict("row-remap-failed", _FAIL, "a row of its memory could not be replaced", _REPLACE)
    if change.states.get("row_remap_pending"):
        yield _Verdict("row-remap-pending", _FIX, "a row of its memory is replaced at the next reset", _RESET_AGAIN)


def _judge_states(change: HealthChange) -> Iterator[_Verdict]:
    """What the driver asks for, and how the device stands in the fabric of its machine."""
    fabric, status = change.states.get("fabric_state"), change.states.get("fabric_status")
    health = change.states.get("fabric_health")
    action = change.states.get("recovery_action", 0)
    if action in _RECOVERY:
        outcome, reason, remedy = _RECOVERY[action]
        yield _Verdict("recovery-action-%d" % action, outcome, reason, remedy)
    elif action:
        reason = "its driver asks for recovery action %d, which this version does not know" % action
        yield _Verdict("recovery-action-%d" % action, _INCONCLUSIVE, reason, _REBOOT)
    if fabric in (1, 2):
        yield _Verdict("fabric-unhealthy", _INCONCLUSIVE, "it has not joined the NVLink fabric", _FABRIC)
    elif fabric == 3 and status:
        reason = "it joined the NVLink fabric with error %d" % status
        yield _Verdict("fabric-unhealthy", _INCONCLUSIVE, reason, _FABRIC)
    elif health == 2:
        reason = "its NVLink fabric is unhealthy, of which the other end may be the cause"
        yield _Verdict("fabric-unhealthy", _INCONCLUSIVE, reason, _FABRIC)
    elif health == 3:
        yield _Verdict("fabric-unhealthy", _INCONCLUSIVE, "its NVLink fabric has limited capacity", _FABRIC)


def _judge_links(
    change: HealthChange, first: Optional[DeviceHealth], device: DeviceHealth, devices: Sequence[DeviceHealth]
) -> Iterator[_Verdict]:
    """NVLink and PCIe."""
    most = _most_links(device, devices)
    up = device.nvlinks_up
    if change.nvlinks_lost:
        names = ", ".join(map(str, change.nvlinks_lost))
        yield _Verdict("nvlink-down", _FAIL, "NVLink %s was up before and is down after" % names, _REPLACE)
    elif up is not None and len(up) < most:
        reason = "%d of its NVLinks are up, and %d of another device of its model" % (len(up), most)
        yield _Verdict("nvlink-fewer", _INCONCLUSIVE, reason, _LOOK)
    elif up == () and device.nvlinks_down:
        yield _Verdict("nvlink-none", _LINE, "none of its %d NVLinks is up" % len(device.nvlinks_down))
    failed = change.rises.get("nvlink_recoveries_failed", 0)
    if failed:
        reason = "its NVLinks failed to recover %d times" % failed
        yield _Verdict("nvlink-recovery-failed", _INCONCLUSIVE, reason, _LOOK)
    crc = change.rises.get("nvlink_crc_errors", 0)
    if crc and crc >= CRC_ERRORS_PER_SECOND * _seconds_between(first, device):
        yield _Verdict("nvlink-crc", _INCONCLUSIVE, "its NVLinks had %d CRC errors" % crc, _LOOK)
    elif crc:
        yield _Verdict("nvlink-crc", _LINE, "its NVLinks had %d CRC errors" % crc)
    repeated = change.rises.get("nvlink_replays", 0) + change.rises.get("nvlink_recoveries", 0)
    if repeated:
        yield _Verdict("nvlink-replays", _LINE, "its NVLinks had %d replays and recoveries" % repeated)
    if change.rises.get("pcie_replays", 0):
        yield _Verdict("pcie-replays", _LINE, "its PCIe link had %d replays" % change.rises["pcie_replays"])
    below = _pcie_below(device)
    if below is not None:
        yield _Verdict("pcie-below-maximum", _LINE, below)


def _most_links(device: DeviceHealth, devices: Sequence[DeviceHealth]) -> int:
    """The most links that are up of a device of its model."""
    counts = [0]
    for other in devices:
        if other.nvlinks_up is not None and device.name is not None and other.name == device.name:
            counts.append(len(other.nvlinks_up))
    return max(counts)


def _seconds_between(first: Optional[DeviceHealth], device: DeviceHealth) -> float:
    """Between the two readings; 1 where their times are not known."""
    if first is None or first.time is None or device.time is None:
        return 1.0
    return max(1.0, device.time - first.time)


def _pcie_below(device: DeviceHealth) -> Optional[str]:
    """How a PCIe link was below what device and system can have, under load; None if it was not, or is not known.

    A value above the maximum is of a virtual machine, and not of the link.
    """
    for what, value, maximum in (
        ("generation", device.pcie_generation_loaded, device.pcie_generation_max),
        ("width", device.pcie_width_loaded, device.pcie_width_max),
    ):
        if value is not None and maximum is not None and value < maximum:
            return "PCIe %s %d under load, and device and system can have %d" % (what, value, maximum)
    return None


def _judge_slowed(change: HealthChange) -> Iterator[_Verdict]:
    """How long heat or the machine lowered the clocks. A power limit is no fault of the device."""
    rises = change.rises
    heat = rises.get("slowed_sw_thermal_ns", 0) + rises.get("slowed_hw_thermal_ns", 0)
    heat_seconds = max(heat, rises.get("slowed_thermal_ns", 0)) / 1e9
    if heat_seconds >= SLOWED_SECONDS:
        yield _Verdict("slowed-by-heat", _INCONCLUSIVE, "heat lowered its clocks for %.1f s" % heat_seconds, _COOL)
    brake_seconds = rises.get("slowed_power_brake_ns", 0) / 1e9
    if brake_seconds >= SLOWED_SECONDS:
        reason = "the machine's power brake lowered its clocks for %.1f s" % brake_seconds
        yield _Verdict("slowed-by-power-brake", _INCONCLUSIVE, reason, _COOL)
    cap_seconds = rises.get("slowed_power_cap_ns", 0) / 1e9
    if cap_seconds >= SLOWED_SECONDS:
        yield _Verdict("slowed-by-power-limit", _LINE, "its power limit lowered its clocks for %.1f s" % cap_seconds)


def _judge_unknown(first: Optional[DeviceHealth], device: DeviceHealth) -> Iterator[_Verdict]:
    """What is not known of a device, by group."""
    if first is None or not first.answered:
        reason = "it was not read before, so that nothing is known of what its counters added"
        yield _Verdict("before-not-known", HealthOutcome.NOT_KNOWN, reason)
    for group, (words, names) in _GROUPS.items():
        known_before = [name for name in names if first is not None and getattr(first, name) is not None]
        gone = [name for name in known_before if getattr(device, name) is None]
        kind = "%s-not-known" % group
        if gone:
            reason = "%s: known before, and not after (%s)" % (words, _refusal(device, gone))
            yield _Verdict(kind, HealthOutcome.NOT_KNOWN, reason)
        elif group in _ALWAYS_ASKED and all(getattr(device, name) is None for name in names):
            reason = "%s: not known (%s)" % (words, _refusal(device, names))
            yield _Verdict(kind, HealthOutcome.NOT_KNOWN, reason)


def _refusal(device: DeviceHealth, names: Sequence[str]) -> str:
    for name in names:
        if name in device.refusals:
            return device.refusals[name]
    return "it was not read"
