"""Parses the JSON that `amd-smi static --json` and `amd-smi metric --json` print of each device.

Its keys are those of ROCm/amdsmi (amdsmi_cli/amdsmi_commands.py, static_gpu and metric_gpu). It is a list of devices,
which later releases wrap in `gpu_data`. A number is `{"value": 137, "unit": "W"}`, and a missing value is "N/A".
"""

from __future__ import annotations

import json
import re
from typing import Any

MIB = 2**20

_NUMBERS: dict[str, tuple[tuple[str, ...], float]] = {
    "memory_total_bytes": (("vram", "size"), MIB),
    "power_limit_w": (("limit", "socket_power"), 1),
    "util": (("usage", "gfx_activity"), 0.01),
    "power_w": (("power", "socket_power"), 1),
    "temperature_c": (("temperature", "hotspot"), 1),
    "mem_clock_mhz": (("clock", "mem_0", "clk"), 1),
    "mem_clock_max_mhz": (("clock", "mem_0", "max_clk"), 1),
    "mem_used_bytes": (("mem_usage", "used_vram"), MIB),
    "energy_mj": (("energy", "total_energy_consumption"), 1000),
}
"""The numbers by their names here: the path in the output, and the factor to the unit in the name.

Memory is printed in units of 2^20 bytes, which the tool calls MB.
"""
_TEXTS: dict[str, tuple[str, ...]] = {
    "name": ("asic", "market_name"),
    "uuid": ("asic", "asic_serial"),
    "architecture": ("asic", "target_graphics_version"),
    "driver_version": ("driver", "version"),
}
"""The texts by their names here: the path in the output."""


def parse(text: str) -> list[dict[str, Any]]:
    """The values of each device, as a monitor's sample has them.

    Each has `index`, and as far as they are printed the names of _TEXTS and _NUMBERS, `sm_clock_mhz` and
    `sm_clock_max_mhz`, which are those of the device's fastest die. Empty for a text without devices.
    """
    return [_parse_device(gpu) for gpu in list_devices(text)]


def list_devices(text: str) -> list[dict[str, Any]]:
    """The JSON objects of the devices in the output of the tool; each has its number as `gpu`."""
    printed = first_document(text)
    if isinstance(printed, dict):
        printed = printed.get("gpu_data")
    if not isinstance(printed, list):
        return []
    devices = []
    for gpu in printed:
        if isinstance(gpu, dict) and isinstance(gpu.get("gpu"), int):
            devices.append(gpu)
    return devices


def _parse_device(gpu: dict[str, Any]) -> dict[str, Any]:
    """The values of one device, without those that are not printed."""
    fields: dict[str, Any] = {"index": gpu["gpu"]}
    for name, path in _TEXTS.items():
        fields[name] = _text(_at(gpu, path))
    for name, (path, factor) in _NUMBERS.items():
        number = _number(_at(gpu, path))
        fields[name] = None
        if number is not None:
            fields[name] = number * factor
    if fields["power_limit_w"] is None:  # later releases print a limit of each kind of power tracking
        fields["power_limit_w"] = _number(_at(gpu, ("limit", "ppt0", "socket_power_limit")))
    fields["sm_clock_mhz"] = _fastest(gpu, "clk")
    fields["sm_clock_max_mhz"] = _fastest(gpu, "max_clk")
    return {name: field for name, field in fields.items() if field is not None}


def first_document(text: str) -> Any:
    """The first JSON object or list in a text that begins on a new line; None if there is none.

    The tool prints warnings before it, such as missing groups (ROCm/amdsmi#114). The start of a warning, such as
    `[1] busy`, is not a document: other text follows it on its line.
    """
    decoder = json.JSONDecoder()
    for start in re.finditer(r"^[\[{]", text, re.MULTILINE):
        try:
            document, end = decoder.raw_decode(text, start.start())
        except ValueError:
            continue
        if not text[end:].partition("\n")[0].strip():
            return document
    return None


def _at(section: Any, path: tuple[str, ...]) -> Any:
    """The value at a path of keys in nested objects; None if it is missing."""
    for key in path:
        if not isinstance(section, dict):
            return None
        section = section.get(key)
    return section


def _text(printed: Any) -> str | None:
    if isinstance(printed, str) and printed not in ("", "N/A"):
        return printed
    return None


def _number(printed: Any) -> float | None:
    if isinstance(printed, dict):
        printed = printed.get("value")
    if isinstance(printed, (int, float)) and not isinstance(printed, bool):
        return printed
    return None


def _fastest(gpu: dict[str, Any], clock_name: str) -> float | None:
    """The highest clock of a device's dies. `clock_name`: `clk`, the current one, or `max_clk`."""
    clocks = gpu.get("clock")
    if not isinstance(clocks, dict):
        return None
    highest: float | None = None
    for name, die in clocks.items():
        if not name.startswith("gfx"):
            continue
        clock = _number(_at(die, (clock_name,)))
        if clock is not None and (highest is None or clock > highest):
            highest = clock
    return highest
