"""Reads the health of NVIDIA devices through NVML, with the Python binding nvidia-ml-py. No call needs root.

Calls and numbers are those of nvml.h (API 13). If a driver lacks a call, the call fails with FUNCTION_NOT_FOUND; an
old binding lacks the name. `nvmlDeviceGetFieldValues` returns for each value separately whether it was refused.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import replace
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

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
except ImportError:  # nvidia-smi is used instead
    pynvml = None

# Error codes are written as numbers, since older bindings do not name them all.
_INVALID_ARGUMENT = "invalid argument"
_REFUSALS = {
    2: _INVALID_ARGUMENT,  # INVALID_ARGUMENT
    3: NOT_SUPPORTED,  # NOT_SUPPORTED
    4: NO_PERMISSION,  # NO_PERMISSION
    13: NO_CALL,  # FUNCTION_NOT_FOUND
    25: NO_CALL,  # ARGUMENT_VERSION_MISMATCH: the structure is one of a newer driver
    26: NO_CALL,  # DEPRECATED
}
"""The error codes with which NVML refuses a single value, with the words for the refusal."""
_SILENCES = {
    15: LOST,  # GPU_IS_LOST
    16: RESET_REQUIRED,  # RESET_REQUIRED
}
"""The error codes after which a device answers no further call."""
_UNKNOWN = 999
"""The error code UNKNOWN."""

# Constants of nvml.h.
_MOST_LINKS = 18  # NVML_NVLINK_MAX_LINKS
_CORRECTED, _UNCORRECTED = 0, 1  # nvmlMemoryErrorType_t
_VOLATILE, _AGGREGATE = 0, 1  # nvmlEccCounterType_t: since the driver was loaded, and in the device's life
_REPLAY, _RECOVERY, _CRC_FLIT, _CRC_DATA = 0, 1, 2, 3  # nvmlNvLinkErrorCounter_t
_VIOLATION_THERMAL = 1  # nvmlPerfPolicyType_t

# Numbers of values that nvmlDeviceGetFieldValues returns.
_LINK_COUNT = 91
_RECOVERIES_FAILED, _RECOVERIES = 214, 215
_FIELDS = {
    "recovery_action": 230,
    "slowed_power_cap_ns": 74,
    "slowed_sw_thermal_ns": 269,
    "slowed_hw_thermal_ns": 270,
    "slowed_power_brake_ns": 271,
}
"""Fields of DeviceHealth that are one such value of the whole device."""


class NvmlError(Exception):
    """NVML cannot be used here; the text says why."""


class Refused(Exception):
    """NVML does not return one value of a device; the text says why."""


class Silent(Exception):
    """The device does not answer; the text says why."""


class NvmlReader:
    """Reads the devices that NVML lists. Their `index` is NVML's, which is their physical order."""

    source = "nvml"

    def open(self) -> List[DeviceHealth]:
        """List the devices, each with the fields that identify it only. Raises NvmlError."""
        if pynvml is None:
            raise NvmlError("the Python package nvidia-ml-py is not installed")
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise NvmlError("NVML: %s" % error) from None
        return [self._identify(index) for index in range(count)]

    def read(self, device: DeviceHealth) -> DeviceHealth:
        """Read the health of a device that `open` returned and that answered. Never raises for a faulty device."""
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
                _drop_meaningless(values, refusals)
        except Silent as silence:
            values["unanswered"] = str(silence)
        except Refused as refusal:
            values["unanswered"] = str(refusal)
        has_values = any(name in values for name in READ)
        if set(refusals.values()) == {UNKNOWN_ERROR} and not has_values:
            # NVML has no error code for such a device: every call fails with UNKNOWN.
            values["unanswered"] = UNKNOWN_ERROR
        values["seconds"] = round(time.monotonic() - began, 3)
        return replace(device, refusals=refusals, **values)

    def _identify(self, index: int) -> DeviceHealth:
        """The device with its UUID, name and PCI address; only with the reason if it does not answer."""
        try:
            handle = _call("nvmlDeviceGetHandleByIndex", index)
            uuid = _decode(_call("nvmlDeviceGetUUID", handle))
            name = _decode(_call("nvmlDeviceGetName", handle))
        except (Silent, Refused) as problem:
            return DeviceHealth(index=index, unanswered=str(problem))
        address = None
        try:
            info = _call("nvmlDeviceGetPciInfo", handle)
            address = pci_address(_decode(info.busId))
        except (Silent, Refused):  # only lines of the kernel log then cannot be assigned to it
            pass
        return DeviceHealth(index=index, uuid=uuid, name=name, pci_address=address)


def pci_address(text: str) -> str:
    """A PCI address in the form of sysfs. The driver writes the domain with 8 digits, and capital letters."""
    return text.strip().lower()[-len("0000:00:00.0") :]


_Values = Dict[str, Any]
"""Values by the names of DeviceHealth's fields."""
_Read = Callable[[Any, _Values], Sequence[Any]]
"""Reads the values of one or several fields.

The arguments are the handle of the device and the values that were read before. Raises Refused or Silent.
"""


class _Reader(NamedTuple):
    """A function that reads fields of a device."""

    names: Tuple[str, ...]
    """The names of the fields, in the order in which `read` returns their values."""
    read: _Read


def _value_reader(name: str, read: Callable[[Any], Any]) -> _Reader:
    """The reader of a single field, whose value is `read(handle)`."""
    return _Reader((name,), lambda handle, values: [read(handle)])


def _call_reader(name: str, function: str) -> _Reader:
    """The reader of a single field, whose value is the result of a function of NVML."""
    return _value_reader(name, lambda handle: _call(function, handle))


def _readers() -> List[_Reader]:
    """The readers of all fields in the order of the calls: the first two decide which other fields have a meaning."""
    readers: List[_Reader] = [
        _value_reader("mig_enabled", lambda handle: bool(_call("nvmlDeviceGetMigMode", handle)[0])),
        _value_reader("ecc_enabled", lambda handle: bool(_call("nvmlDeviceGetEccMode", handle)[0])),
        _value_reader("ecc_corrected", lambda handle: _ecc_errors(handle, _CORRECTED, _VOLATILE)),
        _value_reader("ecc_uncorrected", lambda handle: _ecc_errors(handle, _UNCORRECTED, _VOLATILE)),
        _value_reader("ecc_corrected_aggregate", lambda handle: _ecc_errors(handle, _CORRECTED, _AGGREGATE)),
        _value_reader("ecc_uncorrected_aggregate", lambda handle: _ecc_errors(handle, _UNCORRECTED, _AGGREGATE)),
        _Reader(_ROW_REMAPS, _remapped_rows),
        _call_reader("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
        _call_reader("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth"),
        _call_reader("pcie_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration"),
        _call_reader("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth"),
        _call_reader("pcie_replays", "nvmlDeviceGetPcieReplayCounter"),
        _Reader(("nvlinks_up", "nvlinks_down"), _link_states),
        _Reader(("nvlink_replays",), lambda handle, values: [_link_errors(handle, values, _REPLAY)]),
        _Reader(("nvlink_recoveries",), _link_recoveries),
        _Reader(
            ("nvlink_recoveries_failed",),
            lambda handle, values: [_link_field(handle, values, _RECOVERIES_FAILED)],
        ),
        _Reader(("nvlink_crc_errors",), lambda handle, values: [_link_errors(handle, values, _CRC_FLIT, _CRC_DATA)]),
    ]
    for name, number in _FIELDS.items():
        readers.append(_field_reader(name, number))
    readers.append(_value_reader("slowed_thermal_ns", _thermal_violation))
    readers.append(_Reader(("fabric_state", "fabric_status", "fabric_health"), _fabric))
    return readers


_ROW_REMAPS = ("row_remap_corrected", "row_remap_uncorrected", "row_remap_pending", "row_remap_failed")
_OF_WHOLE_DEVICES = ("ecc_corrected", "ecc_uncorrected", *_ROW_REMAPS, "nvlinks_up", "nvlinks_down")
"""Fields that have no meaning for a device that is divided into parts (MIG)."""


def _drop_meaningless(values: Dict[str, Any], refusals: Dict[str, str]) -> None:
    """Move values without a meaning to the refusals.

    These are values of the whole device if it is divided into parts, and the replaced rows of a device without ECC,
    which are always 0.
    """
    names: Tuple[str, ...] = ()
    reason = ""
    if values.get("mig_enabled"):
        names, reason = _OF_WHOLE_DEVICES, PARTITIONED
    elif values.get("ecc_enabled") is False:
        names, reason = _ROW_REMAPS, ECC_OFF
    for name in names:
        if name in values:
            del values[name]
            refusals[name] = reason


def _call(function: str, *arguments: Any) -> Any:
    """The result of a function of the binding. Raises Refused or Silent."""
    call = getattr(pynvml, function, None)
    if call is None:
        raise Refused(NO_CALL)
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        raise _problem(error.value) from None


def _problem(code: int) -> Exception:
    """The exception for an error code of NVML."""
    if code in _SILENCES:
        return Silent(_SILENCES[code])
    if code in _REFUSALS:
        return Refused(_REFUSALS[code])
    if code == _UNKNOWN:
        return Refused(UNKNOWN_ERROR)
    return Refused(str(pynvml.NVMLError(code)))


def _ecc_errors(handle: Any, kind: int, counter: int) -> int:
    return int(_call("nvmlDeviceGetTotalEccErrors", handle, kind, counter))


def _remapped_rows(handle: Any, values: _Values) -> Sequence[Any]:
    corrected, uncorrected, pending, failed = _call("nvmlDeviceGetRemappedRows", handle)
    return corrected, uncorrected, bool(pending), bool(failed)


def _link_count(handle: Any) -> int:
    """How many NVLinks the device has; the most that any has if the driver does not say it."""
    try:
        return min(int(_field(handle, _LINK_COUNT)), _MOST_LINKS)
    except Refused:
        return _MOST_LINKS


def _link_states(handle: Any, values: _Values) -> Sequence[Tuple[int, ...]]:
    """The numbers of the links that are up, and of those that are down."""
    up: List[int] = []
    down: List[int] = []
    for link in range(_link_count(handle)):
        try:
            state = _call("nvmlDeviceGetNvLinkState", handle, link)
        except Refused as refusal:
            if str(refusal) == _INVALID_ARGUMENT:  # the device has no link of this number, nor a higher one
                break
            if up or down:  # only this link cannot be read
                continue
            raise
        if state:
            up.append(link)
        else:
            down.append(link)
    return tuple(up), tuple(down)


def _links_up(values: _Values) -> Tuple[int, ...]:
    """The numbers of the links that are up. Raises Refused if none is: then there is nothing to count."""
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
    """The successful recoveries of all links: their error counter, or their field on NVLink 5, which lacks it."""
    try:
        return [_link_errors(handle, values, _RECOVERY)]
    except Refused:
        return [_link_field(handle, values, _RECOVERIES)]


def _thermal_violation(handle: Any) -> int:
    """How long heat lowered the clocks, ns. The call is that of drivers before 575, and is removed with CUDA 14."""
    return int(_call("nvmlDeviceGetViolationStatus", handle, _VIOLATION_THERMAL).violationTime)


_VALUE_NAMES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""The members of the union nvmlValue_t, by nvmlValueType_t."""


def _field_reader(name: str, number: int) -> _Reader:
    """The reader of a single field, whose value has a number in nvmlDeviceGetFieldValues."""
    return _value_reader(name, lambda handle: _field(handle, number))


def _field(handle: Any, number: Any) -> Any:
    """One value of nvmlDeviceGetFieldValues. `number`: that of the value, or (number of the value, link)."""
    value = _call("nvmlDeviceGetFieldValues", handle, [number])[0]
    if value.nvmlReturn:
        raise _problem(value.nvmlReturn)
    return getattr(value.value, _VALUE_NAMES[value.valueType])


def _fabric(handle: Any, values: _Values) -> Sequence[Optional[int]]:
    """State, status and health summary; the summary is None with drivers before 580, which do not have it."""
    refusal = Refused(NO_CALL)
    for structure, has_summary in (("c_nvmlGpuFabricInfo_v3_t", True), ("c_nvmlGpuFabricInfo_v2_t", False)):
        create = getattr(pynvml, structure, None)
        if create is None:  # an old binding
            continue
        info = create()
        try:
            _call("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info))
        except Refused as problem:
            refusal = problem
            if str(problem) != NO_CALL:
                break
            continue  # an old driver
        summary = None
        if has_summary:
            summary = info.healthSummary
        return info.state, info.status, summary
    raise refusal


def _decode(value: Any) -> str:
    """A text of NVML: old versions of nvidia-ml-py return bytes."""
    if isinstance(value, bytes):
        return value.decode()
    return str(value)
