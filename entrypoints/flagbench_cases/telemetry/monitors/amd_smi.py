"""The monitor of AMD devices, which reads the JSON that `amd-smi` prints; flagbench_core.amd_smi parses it."""

from __future__ import annotations

import os
from typing import Any, Sequence

from flagbench_cases.telemetry import command
from flagbench_cases.telemetry.monitors import Monitor, MonitorSample, MonitorUnavailable, run_devices
from flagbench_core import amd_smi

PLACES = ("/opt/rocm/bin",)
"""The folder in which ROCm installs the tool, if it is not on PATH."""
STATIC = ("static", "--asic", "--driver", "--limit", "--vram", "--json")
METRIC = ("metric", "--usage", "--power", "--clock", "--temperature", "--mem-usage", "--energy", "--json")
TIMEOUT_S = 5.0
"""The most seconds that a call may take. The tool is a Python program that loads the driver's library each time."""
PATIENCE = 3
"""After this many consecutive samples without an answer the tool is not called again."""
VARIABLES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""The variables that decide which devices are visible, by precedence (ROCm, "GPU isolation techniques")."""
_OF_SAMPLES = ("power_w", "energy_mj", "temperature_c", "sm_clock_mhz", "mem_clock_mhz", "util", "mem_used_bytes")


def create(devices: Sequence[int] | None = None) -> Monitor:
    """The monitor of the run's `devices`, numbered within the visibility variables (None: all visible ones)."""
    return AmdSmiMonitor(devices, command.Tool("amd-smi", PLACES))


def _visibility_variable() -> str:
    """The variable that decides which devices are visible."""
    for name in VARIABLES:
        if name in os.environ:
            return name
    return VARIABLES[0]


class AmdSmiMonitor:
    """Reads the run's devices. `index` is the number within the run, `amdsmi_index` the tool's."""

    def __init__(self, devices: Sequence[int] | None, tool: command.Tool) -> None:
        self._requested = devices
        self._tool = tool
        self._devices: list[dict[str, Any]] = []
        """The static values of the run's devices, in the run's order; `index` is the tool's number."""
        self._failures = 0
        """How many samples in a row the tool did not answer."""

    def open(self) -> None:
        try:
            text = self._tool.ask(STATIC, TIMEOUT_S)
            listed = amd_smi.parse(text)
            if not listed:
                raise command.no_device("amd-smi", text)
            variable = _visibility_variable()
            uuids = [device.get("uuid", "") for device in listed]
            chosen = run_devices(variable, os.environ.get(variable), uuids, self._requested)
            self._devices = [listed[place] for place in chosen if isinstance(place, int)]
            for device, values in zip(self._devices, self._read()):
                # The highest clocks, and the memory that is used before the run.
                for key, value in values.items():
                    if key == "mem_used_bytes" or key not in _OF_SAMPLES:
                        device[key] = value
        except command.NoAnswer as error:
            raise MonitorUnavailable(str(error)) from None

    def static(self) -> dict[str, Any]:
        devices = []
        for index, device in enumerate(self._devices):
            devices.append({"amdsmi_index": device["index"], **device, "index": index})
        static: dict[str, Any] = {"devices": devices}
        for device in devices:
            version = device.pop("driver_version", None)
            if version is not None:
                static.setdefault("driver_version", version)
        return static

    def sample(self) -> MonitorSample:
        if self._failures >= PATIENCE:
            return MonitorSample([], [])
        try:
            printed = self._read()
        except command.NoAnswer as error:
            self._failures += 1
            failures = [{"device": index, "reason": str(error)} for index in range(len(self._devices))]
            return MonitorSample([], failures)
        self._failures = 0
        devices, errors = [], []
        for index, device_values in enumerate(printed):
            values = {key: device_values[key] for key in _OF_SAMPLES if key in device_values}
            if values:
                devices.append({"index": index, **values})
            else:
                errors.append({"device": index, "reason": "amd-smi no longer shows it"})
        return MonitorSample(devices, errors)

    def _read(self) -> list[dict[str, Any]]:
        """Call the tool, and return the values of each of the run's devices; empty for one that it does not print."""
        text = self._tool.ask(METRIC, TIMEOUT_S)
        printed = {device["index"]: device for device in amd_smi.parse(text)}
        return [printed.get(device["index"], {}) for device in self._devices]

    def close(self) -> None:
        self._tool.close()
