"""The data of a reading of device health: the counters and states of each device at one time.

The readers in this package (nvml.py, nvidia_smi.py, amd_smi.py) fill in `DeviceHealth`; a record has it as JSON; and
judge.py says what two readings, before and after a run, mean for the device.

Counters count since the driver was loaded, those with `aggregate` in the device's life; those of NVLink are sums over
all links. Names with `slowed` are durations for which the device's clocks were lowered, nanoseconds.
"""

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
"""Common refusals, which say why a field has no value. Any other refusal is a text of the driver or its tool."""

LOST = "GPU is lost"
RESET_REQUIRED = "GPU requires reset"
NOT_FOUND = "not found"
NO_ANSWER = "no answer"
"""Why a device did not answer at all. After NO_ANSWER, the text says how long the reading waited."""


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
        """The fields for JSON. Fields without a value are absent, and the numbers of links are lists."""
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
        """Whether the device answered, so that its fields are valid."""
        return self.unanswered is None

    @property
    def has_values(self) -> bool:
        """Whether any counter or state of the device was read."""
        return self.answered and any(getattr(self, name) is not None for name in READ)


FIELDS = tuple(item.name for item in fields(DeviceHealth) if item.name != "refusals")
"""The names of all fields except `refusals`, in their order."""
IDENTITY = ("index", "uuid", "name", "pci_address", "unanswered", "time", "seconds")
"""Fields that say which device was read, when, and whether it answered."""
LOADED = ("pcie_generation_loaded", "pcie_width_loaded")
"""Fields that are not read from the device here, but come from the samples during a run."""
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
"""Fields that only rise: what matters is by how much they rose between two readings."""
STATES = tuple(name for name in FIELDS if name not in (*IDENTITY, *LOADED, *COUNTERS))
"""Fields of which only the last value matters."""
READ = (*STATES, *COUNTERS)
"""Fields that are read from a device."""


@dataclass(frozen=True)
class HealthReading:
    """The health of all devices of this machine, or of the requested ones, at one time."""

    devices: Tuple[DeviceHealth, ...] = ()
    source: Optional[str] = None
    """The library or tool that the devices were read with: `nvml`, `nvidia-smi` or `amd-smi`."""
    problem: Optional[str] = None
    """Why no device was read; None if devices were read."""

    def to_dict(self) -> Dict[str, Any]:
        """The reading for JSON; `source` and `problem` are absent if they are None."""
        values: Dict[str, Any] = {"devices": [device.to_dict() for device in self.devices]}
        if self.source is not None:
            values["source"] = self.source
        if self.problem is not None:
            values["problem"] = self.problem
        return values


def device_health(values: Mapping[str, Any]) -> DeviceHealth:
    """The inverse of `DeviceHealth.to_dict`. Names that this version does not know are left out."""
    known = {name: values[name] for name in FIELDS if name in values}
    for name in ("nvlinks_up", "nvlinks_down"):
        if known.get(name) is not None:
            known[name] = tuple(known[name])
    return DeviceHealth(**known, refusals=dict(values.get("refusals", {})))


def choose_devices(devices: Sequence[DeviceHealth], uuids: Optional[Sequence[str]]) -> List[DeviceHealth]:
    """The devices with these UUIDs, in the order of the UUIDs (None: all devices).

    A faulty device may not tell its UUID. So for a UUID that no device has, the next device without a UUID is taken,
    with its reason for not answering; if no such device is left, the result has a device that is NOT_FOUND. A part of
    a device (MIG) has no counters or states of its own to read.
    """
    if uuids is None:
        return list(devices)
    by_uuid = {device.uuid: device for device in devices if device.uuid is not None}
    without_uuid = [device for device in devices if device.uuid is None]
    chosen = []
    for uuid in uuids:
        if uuid in by_uuid:
            chosen.append(by_uuid[uuid])
        elif uuid.startswith("MIG-"):
            chosen.append(DeviceHealth(uuid=uuid, refusals=dict.fromkeys(READ, PARTITIONED)))
        elif without_uuid:
            chosen.append(replace(without_uuid.pop(0), uuid=uuid))
        else:
            chosen.append(DeviceHealth(uuid=uuid, unanswered=NOT_FOUND))
    return chosen
