"""The types of a reading of device health: the counters and states of each device at one time.

The readers in this package (nvml.py, nvidia_smi.py, amd_smi.py) fill in `DeviceHealth`, and a record contains it as
JSON. judge.py compares the readings before and after a run and says what they mean for the device. The docstrings of
the fields of `DeviceHealth` are their descriptions in the JSON Schema of a record.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

NOT_SUPPORTED = "not supported"
"""The refusal (the reason why one field has no value) of a device that does not have the field."""
NO_PERMISSION = "no permission"
"""The refusal if the driver allows only root, or nobody, to read the field."""
NO_CALL = "not in this driver"
"""The refusal if the driver or its Python binding is too old to read the field."""
UNKNOWN_ERROR = "unknown error"
"""The refusal if the driver reports an error without a reason."""
ECC_OFF = "ECC is off"
"""The refusal of ECC counters if ECC is off."""
PARTITIONED = "the device is divided into parts (MIG)"
"""The refusal of fields that only a whole device has."""
NOT_KNOWN = "not known"
"""The refusal of a field that the output of a vendor's tool lacks. Other refusals are texts of drivers and tools."""

LOST = "GPU is lost"
"""Why a device did not answer at all: it is no longer on the bus."""
RESET_REQUIRED = "GPU requires reset"
"""Why a device did not answer at all: it answers again only after a reset."""
NOT_FOUND = "not found"
"""Why a device did not answer at all: no device has the requested UUID."""
NO_ANSWER = "no answer"
"""The start of the reason if a reading did not end in time. The text then says how long it waited: ` in 60 s`."""


@dataclass(frozen=True)
class DeviceHealth:
    """The health of one device at one time: its counters of errors, its states and its links.

    A field is None (in JSON absent) if it was not read; `refusals` then has the reason under the name of the field.
    Volatile counters start at 0 when the driver is loaded, and so do the durations with the prefix `slowed`.
    Aggregate counters cover the life of the device.
    """

    index: Optional[int] = None
    """The index of the device: in a record among the devices of the run, elsewhere in the list of its vendor's
    tool."""
    uuid: Optional[str] = None
    """The UUID that the driver reports."""
    name: Optional[str] = None
    """The name of the device model that the driver reports."""
    pci_address: Optional[str] = None
    """The PCI address in the form of sysfs, such as `0000:9b:00.0`."""
    unanswered: Optional[str] = None
    """Why the device did not answer, such as `GPU is lost` or `no answer in 60 s`; None if it answered."""
    time: Optional[float] = None
    """The time of the reading, Unix seconds."""
    seconds: Optional[float] = None
    """The duration of the reading in seconds."""
    ecc_enabled: Optional[bool] = None
    """Whether ECC, the error correction of the device's memory, is on."""
    mig_enabled: Optional[bool] = None
    """Whether the device is in the mode that divides it into parts (MIG)."""
    ecc_corrected: Optional[int] = None
    """The number of memory errors that ECC corrected; a volatile counter."""
    ecc_uncorrected: Optional[int] = None
    """The number of memory errors that ECC could not correct; a volatile counter."""
    ecc_corrected_aggregate: Optional[int] = None
    """The number of memory errors that ECC corrected; an aggregate counter."""
    ecc_uncorrected_aggregate: Optional[int] = None
    """The number of memory errors that ECC could not correct; an aggregate counter."""
    row_remap_corrected: Optional[int] = None
    """The number of memory rows that were replaced after corrected errors, in the life of the device."""
    row_remap_uncorrected: Optional[int] = None
    """The number of memory rows that were replaced after uncorrected errors, in the life of the device."""
    row_remap_pending: Optional[bool] = None
    """Whether a memory row is to be replaced at the next reset."""
    row_remap_failed: Optional[bool] = None
    """Whether the replacement of a memory row has ever failed."""
    recovery_action: Optional[int] = None
    """The action that the driver asks for, as an nvmlDeviceGpuRecoveryAction_t: 0 none, 1 reset, 2 reboot, 3 drain
    P2P, 4 drain and reset, 5 depends on the driver (580: bus reset; from 610: IMEX domain), 6 bus reset, 7 system
    reboot."""
    pcie_generation: Optional[int] = None
    """The current generation of the PCIe link. An idle device lowers it."""
    pcie_width: Optional[int] = None
    """The current number of lanes of the PCIe link."""
    pcie_generation_max: Optional[int] = None
    """The highest PCIe generation that the device and the system support together."""
    pcie_width_max: Optional[int] = None
    """The largest number of PCIe lanes that the device and the system support together."""
    pcie_generation_loaded: Optional[int] = None
    """The highest PCIe generation that was seen while the run used the device. Only a record has it."""
    pcie_width_loaded: Optional[int] = None
    """The largest number of PCIe lanes that was seen while the run used the device. Only a record has it."""
    pcie_replays: Optional[int] = None
    """The number of PCIe packets that were sent again after an error."""
    nvlinks_up: Optional[Tuple[int, ...]] = None
    """The numbers of the NVLink links that are up; empty for a device without NVLink."""
    nvlinks_down: Optional[Tuple[int, ...]] = None
    """The numbers of the NVLink links that are down."""
    nvlink_replays: Optional[int] = None
    """The number of NVLink packets that were sent again after an error, summed over all links."""
    nvlink_recoveries: Optional[int] = None
    """The number of times that an NVLink link recovered from an error, summed over all links."""
    nvlink_recoveries_failed: Optional[int] = None
    """The number of times that an NVLink link failed to recover from an error, summed over all links."""
    nvlink_crc_errors: Optional[int] = None
    """The number of NVLink checksum errors, summed over all links."""
    slowed_sw_thermal_ns: Optional[int] = None
    """How long the driver lowered the clocks because of heat, nanoseconds."""
    slowed_hw_thermal_ns: Optional[int] = None
    """How long the device itself lowered the clocks because of heat, nanoseconds."""
    slowed_thermal_ns: Optional[int] = None
    """How long the clocks were lowered because of heat, nanoseconds, from drivers before 575, which do not
    distinguish the driver from the device."""
    slowed_power_brake_ns: Optional[int] = None
    """How long the clocks were lowered because the machine asked the device to draw less power, nanoseconds."""
    slowed_power_cap_ns: Optional[int] = None
    """How long the clocks were lowered because of the device's power limit, nanoseconds."""
    fabric_state: Optional[int] = None
    """The state of the registration with the NVLink fabric, as an nvmlGpuFabricState_t: 0 not supported, 1 not
    started, 2 in progress, 3 completed."""
    fabric_status: Optional[int] = None
    """The result of a completed registration with the NVLink fabric, as an nvmlReturn_t: 0 is success."""
    fabric_health: Optional[int] = None
    """The health of the NVLink fabric, as an nvmlGpuFabricHealthSummary: 0 not supported, 1 healthy, 2 unhealthy, 3
    limited capacity."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Why a field was not read, by the name of the field: a word such as `not supported`, or a text of the driver."""

    def to_dict(self) -> Dict[str, Any]:
        """Return the fields as a JSON object. Fields without a value are absent, and tuples are lists."""
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
        """Whether the device answered the reading."""
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
"""Fields that a reading does not fill in: a record has them from the samples that were taken during its run."""
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
"""Fields that only rise. Two readings are compared by how much they rose in between."""
STATES = tuple(name for name in FIELDS if name not in (*IDENTITY, *LOADED, *COUNTERS))
"""Fields that describe the device at the time of the reading. Only the last of several readings matters."""
READ = (*STATES, *COUNTERS)
"""All fields that a reading fills in from the counters and states of a device."""


@dataclass(frozen=True)
class HealthReading:
    """The health of all devices of this machine, or of the requested ones, at one time."""

    devices: Tuple[DeviceHealth, ...] = ()
    """The devices in the order of their vendor's tool, or in the order in which they were requested."""
    source: Optional[str] = None
    """The library or tool that the devices were read with: `nvml`, `nvidia-smi` or `amd-smi`."""
    problem: Optional[str] = None
    """Why no device was read; None if devices were read."""

    def to_dict(self) -> Dict[str, Any]:
        """Return the reading as a JSON object; `source` and `problem` are absent if they are None."""
        values: Dict[str, Any] = {"devices": [device.to_dict() for device in self.devices]}
        if self.source is not None:
            values["source"] = self.source
        if self.problem is not None:
            values["problem"] = self.problem
        return values


def device_health(values: Mapping[str, Any]) -> DeviceHealth:
    """Convert the JSON object of `DeviceHealth.to_dict` back. Fields that this version does not know are ignored."""
    known_values = {name: values[name] for name in FIELDS if name in values}
    for name in ("nvlinks_up", "nvlinks_down"):
        if known_values.get(name) is not None:
            known_values[name] = tuple(known_values[name])
    return DeviceHealth(**known_values, refusals=dict(values.get("refusals", {})))


def choose_devices(devices: Sequence[DeviceHealth], uuids: Optional[Sequence[str]]) -> List[DeviceHealth]:
    """Choose the devices with these UUIDs, in the order of the UUIDs.

    The result has one device for each UUID:

    - the device with this UUID, if there is one;
    - for a part of a device (MIG), which has no counters or states of its own, a device that refuses all fields;
    - otherwise the next device that has no UUID, since a faulty device may not report it;
    - if no such device remains, a device that is NOT_FOUND.

    Args:
        devices: all devices of the machine.
        uuids: the UUIDs of the requested devices; None for all devices.
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
