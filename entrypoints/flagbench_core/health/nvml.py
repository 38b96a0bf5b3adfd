"""Reads the health of NVIDIA devices by NVML, through nvidia-ml-py: no call needs root.

Calls and numbers are those of nvml.h (API 13). A driver that lacks a call says so by FUNCTION_NOT_FOUND, an old
binding lacks the name. `nvmlDeviceGetFieldValues` reports in each value whether it was refused.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from flagbench_core.health.reading import (
    ECC_OFF,
    LOST,
    NO_CALL,
    NO_PERMISSION,
    NOT_SUPPORTED,
    PARTITIONED,
    READ,
    RESET_REQUIRED,
    UNKNOWN_ERROR,
    DeviceHealth,
)

try:
    import pynvml
except ImportError:  # the vendor's tool is asked instead
    pynvml = None

_REFUSALS = {2: "invalid argument", 3: NOT_SUPPORTED, 4: NO_PERMISSION, 13: NO_CALL, 25: NO_CALL, 26: NO_CALL}
"""Of one value: INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH (a
structure of a newer driver), DEPRECATED."""
_SILENCES = {15: LOST, 16: RESET_REQUIRED}
"""Of the whole device: GPU_IS_LOST, RESET_REQUIRED."""
_UNKNOWN = 999
_MOST_LINKS = 18  # NVML_NVLINK_MAX_LINKS
_CORRECTED, _UNCORRECTED = 0, 1
_VOLATILE, _AGGREGATE = 0, 1
_REPLAY, _RECOVERY, _CRC_FLIT, _CRC_DATA = 0, 1, 2, 3
_VIOLATION_THERMAL = 1
_LINK_COUNT = 91
_RECOVERIES_FAILED, _RECOVERIES = 214, 215
_RECOVERY_ACTION = 230
_FIELDS = {
    "recovery_action": _RECOVERY_ACTION,
    "slowed_power_cap_ns": 74,
    "slowed_sw_thermal_ns": 269,
    "slowed_hw_thermal_ns": 270,
    "slowed_power_brake_ns": 271,
}
"""Numbers of values that nvmlDeviceGetFieldValues gives."""


class NvmlError(Exception):
    """NVML cannot be used here; the text says why."""


class Refused(Exception):
    """One value is not given; the text is the refusal."""


class Silent(Exception):
    """The device does not answer; the text says why."""


class NvmlReader:
    """The devices that NVML lists, by physical index."""

    source = "nvml"

    def open(self) -> List[DeviceHealth]:
        """Each device with what identifies it. Raises NvmlError."""
        if pynvml is None:
            raise NvmlError("the Python package nvidia-ml-py is not installed")
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise NvmlError("NVML: %s" % error) from None
        return [self._identify(index) for index in range(count)]

    def read(self, device: DeviceHealth) -> DeviceHealth:
        """Everything of a device that `open` gave and that answered."""
        assert device.index is not None
        began = time.monotonic()
        values: Dict[str, Any] = {"time": round(time.time(), 3)}
        refusals: Dict[str, str] = {}
        try:
            handle = _call("nvmlDeviceGetHandleByIndex", device.index)
            for names, read in _readers():
                try:
                    values.update(zip(names, read(handle, values)))
                except Refused as refusal:
                    refusals.update(dict.fromkeys(names, str(refusal)))
                _set_aside(values, refusals)
        except Silent as silence:
            values["unanswered"] = str(silence)
        except Refused as refusal:
            values["unanswered"] = str(refusal)
        if set(refusals.values()) == {UNKNOWN_ERROR} and not set(READ) & set(values):
            values["unanswered"] = UNKNOWN_ERROR
        values["seconds"] = round(time.monotonic() - began, 3)
        return replace(device, refusals=refusals, **values)

    def _identify(self, index: int) -> DeviceHealth:
        try:
            handle = _call("nvmlDeviceGetHandleByIndex", index)
            uuid = _text(_call("nvmlDeviceGetUUID", handle))
            name = _text(_call("nvmlDeviceGetName", handle))
        except (Silent, Refused) as problem:
            return DeviceHealth(index=index, unanswered=str(problem))
        address = None
        try:
            address = pci_address(_text(_call("nvmlDeviceGetPciInfo", handle).busId))
        except (Silent, Refused):
            pass
        return DeviceHealth(index=index, uuid=uuid, name=name, pci_address=address)


def pci_address(text: str) -> str:
    """As sysfs writes it: the driver gives the domain 8 digits and capital letters."""
    return text.strip().lower()[-len("0000:00:00.0") :]


_Values = Dict[str, Any]
_Read = Callable[[Any, _Values], Sequence[Any]]
"""Reads fields by the handle of a device and the fields that were read before. Raises Refused or Silent."""
_Reader = Tuple[Tuple[str, ...], _Read]
"""Names of fields, and what reads them: their values in the same order."""


def _readers() -> List[_Reader]:
    """In the order in which they are asked; the first two decide what the others mean."""
    readers: List[_Reader] = [
        (("mig_enabled",), lambda handle, values: [bool(_call("nvmlDeviceGetMigMode", handle)[0])]),
        (("ecc_enabled",), lambda handle, values: [bool(_call("nvmlDeviceGetEccMode", handle)[0])]),
        (("ecc_corrected",), lambda handle, values: [_ecc(handle, _CORRECTED, _VOLATILE)]),
        (("ecc_uncorrected",), lambda handle, values: [_ecc(handle, _UNCORRECTED, _VOLATILE)]),
        (("ecc_corrected_aggregate",), lambda handle, values: [_ecc(handle, _CORRECTED, _AGGREGATE)]),
        (("ecc_uncorrected_aggregate",), lambda handle, values: [_ecc(handle, _UNCORRECTED, _AGGREGATE)]),
        (
            ("row_remap_corrected", "row_remap_uncorrected", "row_remap_pending", "row_remap_failed"),
            _remapped_rows,
        ),
        (("pcie_generation",), lambda handle, values: [_call("nvmlDeviceGetCurrPcieLinkGeneration", handle)]),
        (("pcie_width",), lambda handle, values: [_call("nvmlDeviceGetCurrPcieLinkWidth", handle)]),
        (("pcie_generation_max",), lambda handle, values: [_call("nvmlDeviceGetMaxPcieLinkGeneration", handle)]),
        (("pcie_width_max",), lambda handle, values: [_call("nvmlDeviceGetMaxPcieLinkWidth", handle)]),
        (("pcie_replays",), lambda handle, values: [_call("nvmlDeviceGetPcieReplayCounter", handle)]),
        (("nvlinks_up", "nvlinks_down"), _link_states),
        (("nvlink_replays",), lambda handle, values: [_link_errors(handle, values, _REPLAY)]),
        (("nvlink_recoveries",), _link_recoveries),
        (("nvlink_recoveries_failed",), lambda handle, values: [_link_field(handle, values, _RECOVERIES_FAILED)]),
        (("nvlink_crc_errors",), lambda handle, values: [_link_errors(handle, values, _CRC_FLIT, _CRC_DATA)]),
    ]
    for name, number in _FIELDS.items():
        readers.append(((name,), _field_reader(number)))
    readers.append((("slowed_thermal_ns",), _thermal_violation))
    readers.append((("fabric_state", "fabric_status", "fabric_health"), _fabric))
    return readers


_OF_WHOLE_DEVICES = (
    "ecc_corrected",
    "ecc_uncorrected",
    "row_remap_corrected",
    "row_remap_uncorrected",
    "row_remap_pending",
    "row_remap_failed",
    "nvlinks_up",
    "nvlinks_down",
)
_OF_ECC = ("row_remap_corrected", "row_remap_uncorrected", "row_remap_pending", "row_remap_failed")


def _set_aside(values: Dict[str, Any], refusals: Dict[str, str]) -> None:
    """Take away what has no meaning: of devices with parts, and of those without ECC, whose rows read as 0."""
    aside = {}
    if values.get("mig_enabled"):
        aside.update(dict.fromkeys(_OF_WHOLE_DEVICES, PARTITIONED))
    elif values.get("ecc_enabled") is False:
        aside.update(dict.fromkeys(_OF_ECC, ECC_OFF))
    for name, reason in aside.items():
        if name in values:
            del values[name]
            refusals[name] = reason


def _call(function: str, *arguments: Any) -> Any:
    """Call a function of the binding. Raises Refused or Silent."""
    call = getattr(pynvml, function, None)
    if call is None:
        raise Refused(NO_CALL)
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        raise _problem(error.value) from None


def _problem(code: int) -> Exception:
    """The exception for an error of NVML, by its number: older bindings do not name them all."""
    if code in _SILENCES:
        return Silent(_SILENCES[code])
    if code in _REFUSALS:
        return Refused(_REFUSALS[code])
    if code == _UNKNOWN:
        return Refused(UNKNOWN_ERROR)
    return Refused(str(pynvml.NVMLError(code)))


def _ecc(handle: Any, kind: int, counter: int) -> int:
    return int(_call("nvmlDeviceGetTotalEccErrors", handle, kind, counter))


def _remapped_rows(handle: Any, values: _Values) -> Sequence[Any]:
    corrected, uncorrected, pending, failed = _call("nvmlDeviceGetRemappedRows", handle)
    return corrected, uncorrected, bool(pending), bool(failed)


def _link_count(handle: Any) -> int:
    try:
        return min(int(_field(handle, _LINK_COUNT)), _MOST_LINKS)
    except Refused:
        return _MOST_LINKS


def _link_states(handle: Any, values: _Values) -> Sequence[Tuple[int, ...]]:
    """The links that are up, and those that are down. INVALID_ARGUMENT is the end of the links."""
    up: List[int] = []
    down: List[int] = []
    for link in range(_link_count(handle)):
        try:
            state = _call("nvmlDeviceGetNvLinkState", handle, link)
        except Refused as refusal:
            if str(refusal) == _REFUSALS[2]:
                break
            if up or down:
                continue
            raise
        if state:
            up.append(link)
        else:
            down.append(link)
    return tuple(up), tuple(down)


def _links_up(values: _Values) -> Tuple[int, ...]:
    up: Tuple[int, ...] = values.get("nvlinks_up", ())
    if not up:
        raise Refused("no NVLink is up")
    return up


def _link_errors(handle: Any, values: _Values, *counters: int) -> int:
    """The sum of error counters over the links that are up."""
    total = 0
    for link in _links_up(values):
        for counter in counters:
            total += int(_call("nvmlDeviceGetNvLinkErrorCounter", handle, link, counter))
    return total


def _link_field(handle: Any, values: _Values, number: int) -> int:
    """The sum of a field over the links that are up."""
    return sum(int(_field(handle, (number, link))) for link in _links_up(values))


def _link_recoveries(handle: Any, values: _Values) -> Sequence[int]:
    """By the error counter, which NVLink 5 lacks, else by its field."""
    try:
        return [_link_errors(handle, values, _RECOVERY)]
    except Refused:
        return [_link_field(handle, values, _RECOVERIES)]


def _thermal_violation(handle: Any, values: _Values) -> Sequence[int]:
    """By the call that drivers before 575 have, and from CUDA 14 on none has."""
    return [int(_call("nvmlDeviceGetViolationStatus", handle, _VIOLATION_THERMAL).violationTime)]


_VALUE_NAMES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of nvmlValue_t by nvmlValueType_t."""


def _field_reader(number: int) -> _Read:
    return lambda handle, values: [_field(handle, number)]


def _field(handle: Any, number: Any) -> Any:
    """One value of nvmlDeviceGetFieldValues; `number`: of the field, or (field, link)."""
    value = _call("nvmlDeviceGetFieldValues", handle, [number])[0]
    if value.nvmlReturn:
        raise _problem(value.nvmlReturn)
    return getattr(value.value, _VALUE_NAMES[value.valueType])


def _fabric(handle: Any, values: _Values) -> Sequence[Optional[int]]:
    """State, status and health summary, the last of which drivers before 580 do not have."""
    refusal = Refused(NO_CALL)
    for structure, has_summary in (("c_nvmlGpuFabricInfo_v3_t", True), ("c_nvmlGpuFabricInfo_v2_t", False)):
        create = getattr(pynvml, structure, None)
        if create is None:
            continue
        info = create()
        try:
            _call("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info))
        except Refused as problem:
            refusal = problem
            if str(problem) != NO_CALL:
                break
            continue
        summary = info.healthSummary if has_summary else None
        return info.state, info.status, summary
    raise refusal


def _text(value: Any) -> str:
    """Decode text: old versions of nvidia-ml-py return bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
