"""The monitor of AMD devices, by the JSON of `amd-smi`; see flagbench_core.amd_smi for what is read of it."""

from __future__ import annotations

import os
from typing import Any, Sequence

from flagbench_cases.telemetry import command
from flagbench_cases.telemetry.monitors import Monitor, MonitorSample, MonitorUnavailable, run_devices
from flagbench_core import amd_smi

PLACES = ("/opt/rocm/bin",)
STATIC = ("static", "--asic", "--driver", "--limit", "--vram", "--json")
METRIC = ("metric", "--usage", "--power", "--clock", "--temperature", "--mem-usage", "--energy", "--json")
# It is a Python program that loads the driver's library for every call.
TIMEOUT_S = 5.0
# After this many consecutive samples without an answer the tool is not called again.
PATIENCE = 3
# By their documented precedence, the first that is set: ROCm, "GPU isolation techniques".
VARIABLES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
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
        self._wanted = devices
        self._tool = tool
        self._found: list[dict[str, Any]] = []
        self._failures = 0

    def open(self) -> None:
        try:
            text = self._tool.ask(STATIC, TIMEOUT_S)
            listed = amd_smi.parse(text)
            if not listed:
                raise command.no_device("amd-smi", text)
            variable = _visibility_variable()
            uuids = [device.get("uuid", "") for device in listed]
            chosen = run_devices(variable, os.environ.get(variable), uuids, self._wanted)
            self._found = [listed[place] for place in chosen if isinstance(place, int)]
            for device, values in zip(self._found, self._read()):
                # What is used before the run, and the clocks that it may have.
                device.update({key: value for key, value in values.items() if key not in _OF_SAMPLES[:-1]})
        except command.NoAnswer as error:
            raise MonitorUnavailable(str(error)) from None

    def static(self) -> dict[str, Any]:
        devices = [
            {"amdsmi_index": device["index"], **device, "index": index} for index, device in enumerate(self._found)
        ]
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
            read = self._read()
        except command.NoAnswer as error:
            self._failures += 1
            return MonitorSample([], [{"device": index, "reason": str(error)} for index in range(len(self._found))])
        self._failures = 0
        devices, errors = [], []
        for index, values in enumerate(read):
            values = {key: values[key] for key in _OF_SAMPLES if key in values}
            if values:
                devices.append({"index": index, **values})
            else:
                errors.append({"device": index, "reason": "amd-smi no longer shows it"})
        return MonitorSample(devices, errors)

    def _read(self) -> list[dict[str, Any]]:
        """What is printed of each of the run's devices now."""
        printed = {device["index"]: device for device in amd_smi.parse(self._tool.ask(METRIC, TIMEOUT_S))}
        return [printed.get(device["index"], {}) for device in self._found]

    def close(self) -> None:
        self._tool.close()
