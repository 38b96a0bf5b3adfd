"""The monitor of NVIDIA devices: NVML through nvidia-ml-py, from driver R470 on.

Power is that of `nvmlDeviceGetPowerUsage`: averaged over the last second, on GA100 and older instantaneous. Energy is
counted by devices from Volta on. Used memory is that of MemoryInfo v2 if the driver supports it (without memory
reserved by the driver), else of v1 (NVML API reference).
"""

from __future__ import annotations

import os
from typing import Any, Callable, Sequence

from flagbench_cases.telemetry.monitors import Monitor, MonitorSample, MonitorUnavailable, run_devices

try:
    import pynvml
except ImportError:  # the sampler then reports it in its file, and samples only the CPUs
    pynvml = None

# Bits of nvmlClocksEventReasons (nvml.h), whose old name is nvmlClocksThrottleReasons.
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

# Errors that mean that a value is not available at all: the driver or device does not support or allow the call. In
# the order of nvml.h: INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND,
# ARGUMENT_VERSION_MISMATCH, DEPRECATED; by number, since older bindings do not name them all. Not UNKNOWN, which a
# container gets whose devices were taken away.
_REFUSALS = frozenset((2, 3, 4, 13, 25, 26))
_GPU_IS_LOST = 15

# Values of the whole board, of which a MIG instance is a part.
_OF_BOARD = frozenset(
    ("power_w", "energy_mj", "power_limit_w", "power_limit_default_w", "util")
    + ("memory_total_bytes", "mem_used_bytes", "processes")
)

_Read = Callable[[Any], Any]


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
    names = [name for bit, name in _REASONS if mask & bit]
    rest = mask & ~sum(bit for bit, _ in _REASONS)
    return names + [f"reason_0x{1 << n:x}" for n in range(rest.bit_length()) if rest >> n & 1]


class _Field:
    """One value of one device, read by the first call that its driver supports; unsupported calls are dropped."""

    def __init__(self, name: str, *reads: _Read) -> None:
        self.name = name
        self._reads = list(reads)

    def read(self, handle: Any) -> Any | None:
        """The value, or None if the driver does not provide it. Raises NVMLError if the device is faulty."""
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
        """`device`: its physical index, or the UUID of a MIG instance."""
        self.index = index
        self.handle = _handle(device)
        self.sampled = _sampled_fields()
        self._is_part = isinstance(device, str)

    def read(self, fields: Sequence[_Field]) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """The values of `fields`, and an error if some could not be read; of a lost device no more is read."""
        values: dict[str, Any] = {"index": self.index}
        failures: list[str] = []
        for field in fields:
            if self._is_part and field.name in _OF_BOARD:
                continue
            try:
                value = field.read(self.handle)
            except pynvml.NVMLError as error:
                failures.append(f"{field.name}: {error}")
                if error.value == _GPU_IS_LOST:
                    break
                continue
            if value is not None:
                values[field.name] = value
            if field.name == "mig" and value:
                self._is_part = True  # a process can use an instance only, even where NVML shows the board
        if not failures:
            return values, None
        return values, {"device": self.index, "reason": "; ".join(failures)}


class NvmlMonitor:
    """Reads the run's devices. `index` is the number within the run, `nvml_index` the physical number."""

    def __init__(self, devices: Sequence[int] | None = None) -> None:
        self._wanted = devices
        self._devices: list[_Device] = []
        self._errors: list[dict[str, Any]] = []
        self._open = False

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
            self._open = True
            self._devices = self._find()
        except pynvml.NVMLError as error:
            raise MonitorUnavailable(f"NVML: {error}") from error

    def static(self) -> dict[str, Any]:
        static: dict[str, Any] = {"devices": []}
        driver = _Field("driver_version", lambda _: _text(pynvml.nvmlSystemGetDriverVersion())).read(None)
        driver = driver or kernel_driver()
        if driver is not None:
            static["driver_version"] = driver
        for device in self._devices:
            values, error = device.read(_static_fields())
            static["devices"].append(values)
            if error is not None:
                self._errors.append(error)
        return static

    def sample(self) -> MonitorSample:
        reading, self._errors = MonitorSample([], self._errors), []
        for device in self._devices:
            values, error = device.read(device.sampled)
            if len(values) > 1:
                reading.devices.append(values)
            if error is not None:
                reading.errors.append(error)
        return reading

    def close(self) -> None:
        if self._open:
            self._open = False
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError:  # the driver is gone: nothing to release
                pass

    def _find(self) -> list[_Device]:
        uuids, names = _inventory()
        if not uuids:
            raise MonitorUnavailable("NVML finds no device")
        value = os.environ.get("CUDA_VISIBLE_DEVICES")
        chosen = run_devices("CUDA_VISIBLE_DEVICES", value, uuids, self._wanted)
        if (value is None or "-" not in value) and not _same_order(names):
            raise MonitorUnavailable(
                "this node has devices of several models, which CUDA may number in a different order than "
                "NVML; set CUDA_DEVICE_ORDER=PCI_BUS_ID or use UUIDs in CUDA_VISIBLE_DEVICES"
            )
        indices = range(len(chosen)) if self._wanted is None else self._wanted
        return [_Device(index, device) for index, device in zip(indices, chosen)]


def _inventory() -> tuple[list[str], list[str | None]]:
    """UUIDs and names of all physical devices; an empty UUID and no name for a lost device."""
    uuids: list[str] = []
    names: list[str | None] = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuids.append(_text(pynvml.nvmlDeviceGetUUID(handle)))
            names.append(_text(pynvml.nvmlDeviceGetName(handle)))
        except pynvml.NVMLError:
            uuids[index:] = [""]
            names.append(None)
    return uuids, names


def _same_order(names: Sequence[str | None]) -> bool:
    """Whether CUDA numbers devices by PCI bus like NVML; by default it puts the fastest model first."""
    return os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len(set(names) - {None}) <= 1


def _handle(device: Any) -> Any:
    if isinstance(device, int):
        return pynvml.nvmlDeviceGetHandleByIndex(device)
    return pynvml.nvmlDeviceGetHandleByUUID(device)


def _get(function: str, *arguments: Any, convert: Callable[[Any], Any] = lambda value: value) -> _Read:
    """A reader that calls `function` of the binding and converts the result with `convert`.

    A function missing in an old binding is treated like one missing in an old driver.
    """

    def read(handle: Any) -> Any:
        call = getattr(pynvml, function, None)
        if call is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return convert(call(handle, *arguments))

    return read


def _sampled_fields() -> list[_Field]:
    return [
        _Field("power_w", _get("nvmlDeviceGetPowerUsage", convert=_watts)),
        _Field("energy_mj", _get("nvmlDeviceGetTotalEnergyConsumption")),
        _Field("temperature_c", _get("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU)),
        _Field("sm_clock_mhz", _get("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM)),
        _Field("mem_clock_mhz", _get("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM)),
        _Field("util", _get("nvmlDeviceGetUtilizationRates", convert=lambda rates: rates.gpu / 100)),
        _Field("mem_used_bytes", *_memory(lambda memory: memory.used)),
        _Field(
            "throttle",
            _get("nvmlDeviceGetCurrentClocksEventReasons", convert=throttle_reasons),
            _get("nvmlDeviceGetCurrentClocksThrottleReasons", convert=throttle_reasons),
        ),
        # An idle device lowers them, so that the health of its link is what is read under load.
        _Field("pcie_generation", _get("nvmlDeviceGetCurrPcieLinkGeneration")),
        _Field("pcie_width", _get("nvmlDeviceGetCurrPcieLinkWidth")),
    ]


def _static_fields() -> list[_Field]:
    return [
        _Field("mig", _get("nvmlDeviceGetMigMode", convert=lambda modes: bool(modes[0]))),  # before what it decides
        _Field("nvml_index", _get("nvmlDeviceGetIndex")),
        _Field("name", _get("nvmlDeviceGetName", convert=_text)),
        _Field("uuid", _get("nvmlDeviceGetUUID", convert=_text)),
        _Field("memory_total_bytes", *_memory(lambda memory: memory.total)),
        _Field("power_limit_w", _get("nvmlDeviceGetEnforcedPowerLimit", convert=_watts)),
        # Lower than its default if an administrator capped it, a common reason for a slow device.
        _Field("power_limit_default_w", _get("nvmlDeviceGetPowerManagementDefaultLimit", convert=_watts)),
        _Field("sm_clock_max_mhz", _get("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM)),
        _Field("mem_clock_max_mhz", _get("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_MEM)),
        _Field("ecc", _get("nvmlDeviceGetEccMode", convert=lambda modes: bool(modes[0]))),
        _Field("persistence", _get("nvmlDeviceGetPersistenceMode", convert=bool)),
        _Field("mem_used_bytes", *_memory(lambda memory: memory.used)),
        _Field(
            "processes",
            # The unversioned name of current bindings means v3, and hides that a driver lacks it.
            _get("nvmlDeviceGetComputeRunningProcesses_v3", convert=_processes),
            _get("nvmlDeviceGetComputeRunningProcesses_v2", convert=_processes),
        ),
    ]


def _memory(convert: Callable[[Any], Any]) -> tuple[_Read, _Read]:
    version_2 = getattr(pynvml, "nvmlMemory_v2", 0x02000028)
    return (
        _get("nvmlDeviceGetMemoryInfo", version_2, convert=convert),
        _get("nvmlDeviceGetMemoryInfo", convert=convert),
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


def _text(value: Any) -> str:
    """Decode text: old versions of nvidia-ml-py return bytes."""
    if isinstance(value, bytes):
        return value.decode()
    return value
