"""What a reading of device health says: of each device its counters and states, and by name what was refused."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

NOT_SUPPORTED = "not supported"
NO_PERMISSION = "no permission"
NO_CALL = "not in this driver"
UNKNOWN_ERROR = "unknown error"
ECC_OFF = "ECC is off"
PARTITIONED = "the device is divided into parts (MIG)"
NOT_KNOWN = "not known"
"""Refusals: why a field has no value. Others are the words of the driver or its tool."""

LOST = "GPU is lost"
RESET_REQUIRED = "GPU requires reset"
NOT_FOUND = "not found"
NO_ANSWER = "no answer"
"""Why a device did not answer at all; NO_ANSWER is followed by how long it was waited for."""


@dataclass(frozen=True)
class DeviceHealth:
    """One device at one time. A field is None where it was not read; `refusals` then has the reason by its name."""

    index: Optional[int] = None
    """Its place, in a record within the run, else in its vendor's list."""
    uuid: Optional[str] = None
    name: Optional[str] = None
    pci_address: Optional[str] = None
    """As sysfs writes it: 0000:9b:00.0."""
    unanswered: Optional[str] = None
    """Why the device did not answer, such as `GPU is lost` or `no answer in 60 s`; None if it did."""
    time: Optional[float] = None
    """When it was read, Unix seconds."""
    seconds: Optional[float] = None
    """How long the reading took."""
    ecc_enabled: Optional[bool] = None
    mig_enabled: Optional[bool] = None
    ecc_corrected: Optional[int] = None
    """Errors since the driver was loaded (volatile); those with `aggregate`: in the device's life."""
    ecc_uncorrected: Optional[int] = None
    ecc_corrected_aggregate: Optional[int] = None
    ecc_uncorrected_aggregate: Optional[int] = None
    row_remap_corrected: Optional[int] = None
    """Rows of memory that were replaced, after corrected errors, in the device's life."""
    row_remap_uncorrected: Optional[int] = None
    row_remap_pending: Optional[bool] = None
    """A row is replaced at the next reset."""
    row_remap_failed: Optional[bool] = None
    """A row could not be replaced, ever."""
    recovery_action: Optional[int] = None
    """nvmlDeviceGpuRecoveryAction_t: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset, 5 depends on the
    driver (580: bus reset; from 610: IMEX domain), 6 bus reset, 7 system reboot."""
    pcie_generation: Optional[int] = None
    """Now; an idle device lowers it."""
    pcie_width: Optional[int] = None
    """Lanes, now."""
    pcie_generation_max: Optional[int] = None
    """That device and system can have together."""
    pcie_width_max: Optional[int] = None
    pcie_generation_loaded: Optional[int] = None
    """The highest that was seen while the run used the device; only in a record."""
    pcie_width_loaded: Optional[int] = None
    pcie_replays: Optional[int] = None
    nvlinks_up: Optional[Tuple[int, ...]] = None
    """Numbers of the links that are up; empty for a device without any."""
    nvlinks_down: Optional[Tuple[int, ...]] = None
    nvlink_replays: Optional[int] = None
    """Of all links together, as are the others."""
    nvlink_recoveries: Optional[int] = None
    nvlink_recoveries_failed: Optional[int] = None
    nvlink_crc_errors: Optional[int] = None
    slowed_sw_thermal_ns: Optional[int] = None
    """How long the clocks were lowered for heat by the driver, since it was loaded."""
    slowed_hw_thermal_ns: Optional[int] = None
    """For heat by the device itself."""
    slowed_thermal_ns: Optional[int] = None
    """For heat, by drivers before 575, which count it as one."""
    slowed_power_brake_ns: Optional[int] = None
    """By the machine, which asks the device to draw less."""
    slowed_power_cap_ns: Optional[int] = None
    """By the device's power limit."""
    fabric_state: Optional[int] = None
    """nvmlGpuFabricState_t: 0 not supported, 1 not started, 2 in progress, 3 completed."""
    fabric_status: Optional[int] = None
    """nvmlReturn_t of the registration, which counts where it is completed: 0 is success."""
    fabric_health: Optional[int] = None
    """nvmlGpuFabricHealthSummary: 0 not supported, 1 healthy, 2 unhealthy, 3 limited capacity."""
    refusals: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> Dict[str, Any]:
        """As JSON has it: what is not known is absent, links are lists."""
        values: Dict[str, Any] = {}
        for name in FIELDS:
            value = getattr(self, name)
            if isinstance(value, tuple):
                value = list(value)
            if value is not None:
                values[name] = value
        if self.refusals:
            values["refusals"] = dict(self.refusals)
        return values

    @property
    def answered(self) -> bool:
        """Whether the device answered, so that its fields count."""
        return self.unanswered is None

    @property
    def has_values(self) -> bool:
        """Whether anything was read of the device, beside what identifies it."""
        return self.answered and any(getattr(self, name) is not None for name in READ)


FIELDS = tuple(item.name for item in fields(DeviceHealth) if item.name != "refusals")
IDENTITY = ("index", "uuid", "name", "pci_address", "unanswered", "time", "seconds")
LOADED = ("pcie_generation_loaded", "pcie_width_loaded")
COUNTERS = (
    "ecc_corrected",
    "ecc_uncorrected",
    "ecc_corrected_aggregate",
    "ecc_uncorrected_aggregate",
    "row_remap_corrected",
    "row_remap_uncorrected",
    "pcie_replays",
    "nvlink_replays",
    "nvlink_recoveries",
    "nvlink_recoveries_failed",
    "nvlink_crc_errors",
    "slowed_sw_thermal_ns",
    "slowed_hw_thermal_ns",
    "slowed_thermal_ns",
    "slowed_power_brake_ns",
    "slowed_power_cap_ns",
)
"""Fields that only rise: what counts is by how much."""
STATES = tuple(name for name in FIELDS if name not in (*IDENTITY, *LOADED, *COUNTERS))
"""Fields of which the last value counts."""
READ = (*STATES, *COUNTERS)
"""Fields that a device is asked for."""


@dataclass(frozen=True)
class HealthReading:
    """The devices of this machine, or those that were asked for, at one time."""

    devices: Tuple[DeviceHealth, ...] = ()
    source: Optional[str] = None
    """What was asked: `nvml`, `nvidia-smi`, `amd-smi`."""
    problem: Optional[str] = None
    """Why no device was read."""

    def to_dict(self) -> Dict[str, Any]:
        """As JSON has it."""
        values: Dict[str, Any] = {"devices": [device.to_dict() for device in self.devices]}
        if self.source is not None:
            values["source"] = self.source
        if self.problem is not None:
            values["problem"] = self.problem
        return values


def device_health(values: Mapping[str, Any]) -> DeviceHealth:
    """What `DeviceHealth.to_dict` gave. Names that this version does not know are left out."""
    known = {name: values[name] for name in FIELDS if name in values}
    for name in ("nvlinks_up", "nvlinks_down"):
        if known.get(name) is not None:
            known[name] = tuple(known[name])
    return DeviceHealth(**known, refusals=dict(values.get("refusals", {})))


def choose_devices(devices: Sequence[DeviceHealth], uuids: Optional[Sequence[str]]) -> List[DeviceHealth]:
    """The devices with these UUIDs in their order (None: all).

    For a UUID that no device has, the first device that does not say its own stands, with the reason why it does not
    answer; where there is none the device is NOT_FOUND. Of a part of a device nothing can be read.
    """
    if uuids is None:
        return list(devices)
    by_uuid = {device.uuid: device for device in devices if device.uuid is not None}
    nameless = [device for device in devices if device.uuid is None]
    chosen = []
    for uuid in uuids:
        if uuid in by_uuid:
            chosen.append(by_uuid[uuid])
        elif uuid.startswith("MIG-"):
            chosen.append(DeviceHealth(uuid=uuid, refusals=dict.fromkeys(READ, PARTITIONED)))
        elif nameless:
            chosen.append(replace(nameless.pop(0), uuid=uuid))
        else:
            chosen.append(DeviceHealth(uuid=uuid, unanswered=NOT_FOUND))
    return chosen
