"""The monitor of NVIDIA devices: reads power, clocks, memory and their like through NVML, from driver R470 on.

The sampler of a node (telemetry/sampler.py) makes one with `create`. Each value is a `_Field`, read with the first
call of the Python package nvidia-ml-py that the driver supports. Values that a driver does not provide are left out.

What the values mean: power is that of `nvmlDeviceGetPowerUsage`, averaged over the last second, on GA100 and older
instantaneous. Energy is counted by devices from Volta on. Used memory is that of MemoryInfo v2 if the driver supports
it (without memory reserved by the driver), else of v1 (NVML API reference).
"""

from __future__ import annotations

import os
from typing import Any, Callable, NamedTuple, Sequence

from flagbench_cases.telemetry.monitors import Monitor, MonitorSample, MonitorUnavailable, run_devices

try:
    import pynvml
except ImportError:  # the sampler then reports it in its file, and samples only the CPUs
    pynvml = None

_REASONS = (
    (0x001, "gpu_idle"),
    (0x002, "applications_clocks_setting"),
    (0x004, "sw_power_cap"),
    (0x008, "hw_slowdown"),
    (0x010, "sync_boost"),
    (0x020, "sw_thermal_slowdown"),
    (0x040, "hw_thermal_slowdown"),
    (0x080, "hw_power_brake_slowdown"),
    (0x100, "display_clock_setting"),
)
"""Bits of nvmlClocksEventReasons (nvml.h), whose old name is nvmlClocksThrottleReasons, with their names here."""

_REFUSALS = {
    2: "INVALID_ARGUMENT",
    3: "NOT_SUPPORTED",
    4: "NO_PERMISSION",
    13: "FUNCTION_NOT_FOUND",
    25: "ARGUMENT_VERSION_MISMATCH",
    26: "DEPRECATED",
}
"""Errors that mean that a value is not available at all: driver or device do not support or allow the call.

The codes and names are those of nvml.h, since older bindings do not name them all. UNKNOWN is not among them: a
container whose devices were taken away gets it.
"""
_GPU_IS_LOST = 15
"""The error of a device that no longer answers (NVML_ERROR_GPU_IS_LOST)."""

_OF_BOARD = frozenset(
    (
        "power_w",
        "energy_mj",
        "power_limit_w",
        "power_limit_default_w",
        "util",
        "memory_total_bytes",
        "mem_used_bytes",
        "processes",
    )
)
"""Values of the whole board. They are left out for a MIG instance, which is a part of a board."""

_Read = Callable[[Any], Any]
"""Reads one value of a device by its handle. Raises NVMLError."""
_MEMORY_V2 = 0x02000028
"""nvmlMemory_v2 of nvml.h, for bindings that do not define it: the size of the structure, and 2 in the top byte."""


class _DeviceReading(NamedTuple):
    """What was read of one device at one time."""

    values: dict[str, Any]
    """`index`, and the fields that the driver provides, by name."""
    error: dict[str, Any] | None
    """`device` and `reason` if some fields could not be read."""


def create(devices: Sequence[int] | None = None) -> Monitor:
    """The monitor of the run's `devices`, numbered within CUDA_VISIBLE_DEVICES (None: all visible ones)."""
    return NvmlMonitor(devices)


def kernel_driver(path: str = "/proc/driver/nvidia/version") -> str | None:
    """The version of the loaded kernel module from /proc, for a machine on which NVML does not work."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line for line in file if line.startswith("NVRM version:")]
    except OSError:
        return None
    if not lines:
        return None
    for word in lines[0].split():
        if word.replace(".", "").isdigit() and "." in word:
            return word
    return None


def throttle_reasons(mask: int) -> list[str]:
    """Names of the reasons in a bit mask; unknown bits keep their number."""
    names = []
    unknown = mask
    for bit, name in _REASONS:
        if mask & bit:
            names.append(name)
        unknown &= ~bit
    for position in range(unknown.bit_length()):
        bit = 1 << position
        if unknown & bit:
            names.append(f"reason_0x{bit:x}")
    return names


class _Field:
    """One value of one device, read with the first of several calls that its driver supports."""

    def __init__(self, name: str, *reads: _Read) -> None:
        self.name = name
        self._reads = list(reads)
        """The calls that may be supported, in order of preference."""

    def read(self, handle: Any) -> Any | None:
        """Read the value; None if the driver does not provide it. Raises NVMLError if the device is faulty.

        A call that is not supported is not tried again.
        """
        while self._reads:
            try:
                return self._reads[0](handle)
            except pynvml.NVMLError as error:
                if error.value not in _REFUSALS:
                    raise
                del self._reads[0]
        return None


class _Device:
    """One device of the run: its handle and the fields that are sampled."""

    def __init__(self, index: int, device: int | str) -> None:
        """`index`: the device's number in the run; `device`: its physical index, or the UUID of a MIG instance."""
        self.index = index
        self._handle = _get_handle(device)
        self._sampled = _sampled_fields()
        self._is_part = isinstance(device, str)
        """Whether the device is a MIG instance, or a board that is divided into such instances.

        A process can only use an instance, even if NVML shows the board.
        """

    def read_static(self) -> _DeviceReading:
        """Read the values that do not change. From then on it is known whether the board is divided."""
        reading = self._read(_static_fields())
        if reading.values.get("mig"):
            self._is_part = True
        return reading

    def read_sample(self) -> _DeviceReading:
        """Read the values that are sampled."""
        return self._read(self._sampled)

    def _read(self, fields: Sequence[_Field]) -> _DeviceReading:
        """Read `fields`. If the device turns out to be lost, the remaining fields are not read."""
        values: dict[str, Any] = {"index": self.index}
        failures: list[str] = []
        for field in fields:
            is_part = self._is_part or values.get("mig", False)
            if is_part and field.name in _OF_BOARD:
                continue
            try:
                value = field.read(self._handle)
            except pynvml.NVMLError as error:
                failures.append(f"{field.name}: {error}")
                if error.value == _GPU_IS_LOST:
                    break
                continue
            if value is not None:
                values[field.name] = value
        if not failures:
            return _DeviceReading(values, None)
        return _DeviceReading(values, {"device": self.index, "reason": "; ".join(failures)})


class NvmlMonitor:
    """Reads the run's devices. `index` is the number within the run, `nvml_index` the physical number."""

    def __init__(self, devices: Sequence[int] | None = None) -> None:
        self._requested = devices
        self._devices: list[_Device] = []
        self._errors: list[dict[str, Any]] = []
        """Errors from reading static values, which the next sample reports."""
        self._is_open = False

    def open(self) -> None:
        try:
            self._open_library()
        except MonitorUnavailable as error:
            driver = kernel_driver()
            if driver is not None:
                error.facts["driver_version"] = driver
            raise

    def _open_library(self) -> None:
        if pynvml is None:
            raise MonitorUnavailable("the Python package nvidia-ml-py is not installed")
        try:
            pynvml.nvmlInit()
            self._is_open = True
            self._devices = self._find_devices()
        except pynvml.NVMLError as error:
            raise MonitorUnavailable(f"NVML: {error}") from error

    def static(self) -> dict[str, Any]:
        static: dict[str, Any] = {"devices": []}
        driver = _driver_version() or kernel_driver()
        if driver is not None:
            static["driver_version"] = driver
        for device in self._devices:
            reading = device.read_static()
            static["devices"].append(reading.values)
            if reading.error is not None:
                self._errors.append(reading.error)
        return static

    def sample(self) -> MonitorSample:
        sample = MonitorSample([], self._errors)
        self._errors = []
        for device in self._devices:
            reading = device.read_sample()
            if len(reading.values) > 1:  # more than the index
                sample.devices.append(reading.values)
            if reading.error is not None:
                sample.errors.append(reading.error)
        return sample

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError:  # the driver is gone: nothing to release
                pass

    def _find_devices(self) -> list[_Device]:
        """The devices of the run. Raises MonitorUnavailable and NVMLError."""
        uuids, names = _list_devices()
        if not uuids:
            raise MonitorUnavailable("NVML finds no device")
        value = os.environ.get("CUDA_VISIBLE_DEVICES")
        chosen = run_devices("CUDA_VISIBLE_DEVICES", value, uuids, self._requested)
        uses_numbers = value is None or "-" not in value  # a UUID has hyphens
        if uses_numbers and not _same_order(names):
            raise MonitorUnavailable(
                "this node has devices of several models, which CUDA may number in a different order than "
                "NVML; set CUDA_DEVICE_ORDER=PCI_BUS_ID or use UUIDs in CUDA_VISIBLE_DEVICES"
            )
        indices: Sequence[int] = range(len(chosen))
        if self._requested is not None:
            indices = self._requested
        return [_Device(index, device) for index, device in zip(indices, chosen)]


def _driver_version() -> str | None:
    """The version of the driver; None if NVML does not provide it. Raises NVMLError if the driver is faulty."""
    try:
        return _decode(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError as error:
        if error.value not in _REFUSALS:
            raise
    return None


def _list_devices() -> tuple[list[str], list[str | None]]:
    """The UUIDs and the names of all physical devices; an empty UUID and no name for a lost device."""
    uuids: list[str] = []
    names: list[str | None] = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = _decode(pynvml.nvmlDeviceGetUUID(handle))
            name = _decode(pynvml.nvmlDeviceGetName(handle))
        except pynvml.NVMLError:
            uuids.append("")
            names.append(None)
        else:
            uuids.append(uuid)
            names.append(name)
    return uuids, names


def _same_order(names: Sequence[str | None]) -> bool:
    """Whether CUDA numbers devices in the order of their PCI buses, as NVML does.

    By default it puts the fastest model first, which makes no difference if all devices are of one model.
    """
    if os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return True
    models = set(names) - {None}
    return len(models) <= 1


def _get_handle(device: int | str) -> Any:
    if isinstance(device, int):
        return pynvml.nvmlDeviceGetHandleByIndex(device)
    return pynvml.nvmlDeviceGetHandleByUUID(device)


def _reader(function: str, *arguments: Any, convert: Callable[[Any], Any] = lambda value: value) -> _Read:
    """A function that calls `function` of the binding for a device, and converts the result with `convert`.

    A function missing in an old binding is treated like one missing in an old driver.
    """

    def read(handle: Any) -> Any:
        call = getattr(pynvml, function, None)
        if call is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return convert(call(handle, *arguments))

    return read


def _sampled_fields() -> list[_Field]:
    """The fields of one device that are read for every sample."""
    return [
        _Field("power_w", _reader("nvmlDeviceGetPowerUsage", convert=_watts)),
        _Field("energy_mj", _reader("nvmlDeviceGetTotalEnergyConsumption")),
        _Field("temperature_c", _reader("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU)),
        _Field("sm_clock_mhz", _reader("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM)),
        _Field("mem_clock_mhz", _reader("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM)),
        _Field("util", _reader("nvmlDeviceGetUtilizationRates", convert=lambda rates: rates.gpu / 100)),
        _Field("mem_used_bytes", *_memory(lambda memory: memory.used)),
        _Field(
            "throttle",
            _reader("nvmlDeviceGetCurrentClocksEventReasons", convert=throttle_reasons),
            _reader("nvmlDeviceGetCurrentClocksThrottleReasons", convert=throttle_reasons),
        ),
        # Sampled, since an idle device lowers both: the health of the link shows under load.
        _Field("pcie_generation", _reader("nvmlDeviceGetCurrPcieLinkGeneration")),
        _Field("pcie_width", _reader("nvmlDeviceGetCurrPcieLinkWidth")),
    ]


def _static_fields() -> list[_Field]:
    """The fields of one device that are read once, before the run. `mig` is first: it decides which are left out."""
    return [
        _Field("mig", _reader("nvmlDeviceGetMigMode", convert=lambda modes: bool(modes[0]))),
        _Field("nvml_index", _reader("nvmlDeviceGetIndex")),
        _Field("name", _reader("nvmlDeviceGetName", convert=_decode)),
        _Field("uuid", _reader("nvmlDeviceGetUUID", convert=_decode)),
        _Field("memory_total_bytes", *_memory(lambda memory: memory.total)),
        _Field("power_limit_w", _reader("nvmlDeviceGetEnforcedPowerLimit", convert=_watts)),
        # An administrator may have capped the limit below its default, a common reason for a slow device.
        _Field("power_limit_default_w", _reader("nvmlDeviceGetPowerManagementDefaultLimit", convert=_watts)),
        _Field("sm_clock_max_mhz", _reader("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM)),
        _Field("mem_clock_max_mhz", _reader("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_MEM)),
        _Field("ecc", _reader("nvmlDeviceGetEccMode", convert=lambda modes: bool(modes[0]))),
        _Field("persistence", _reader("nvmlDeviceGetPersistenceMode", convert=bool)),
        _Field("mem_used_bytes", *_memory(lambda memory: memory.used)),
        _Field(
            "processes",
            # The unversioned name of current bindings means v3, and hides that a driver lacks it.
            _reader("nvmlDeviceGetComputeRunningProcesses_v3", convert=_processes),
            _reader("nvmlDeviceGetComputeRunningProcesses_v2", convert=_processes),
        ),
    ]


def _memory(convert: Callable[[Any], Any]) -> tuple[_Read, _Read]:
    """Readers of a value of MemoryInfo: in version 2, which leaves out memory reserved by the driver, else in 1."""
    version_2 = getattr(pynvml, "nvmlMemory_v2", _MEMORY_V2)
    return (
        _reader("nvmlDeviceGetMemoryInfo", version_2, convert=convert),
        _reader("nvmlDeviceGetMemoryInfo", convert=convert),
    )


def _processes(processes: Sequence[Any]) -> list[dict[str, int]]:
    """Compute processes on a device; memory is omitted if the driver does not report it."""
    entries = []
    for process in processes:
        entry = {"pid": int(process.pid)}
        if process.usedGpuMemory is not None:
            entry["mem_used_bytes"] = int(process.usedGpuMemory)
        entries.append(entry)
    return entries


def _watts(milliwatts: int) -> float:
    return milliwatts / 1000


def _decode(value: Any) -> str:
    """A text of NVML: old versions of nvidia-ml-py return bytes."""
    if isinstance(value, bytes):
        return value.decode()
    return value
