"""What `amd-smi static --json` and `amd-smi metric --json` print of each device.

Keys as ROCm/amdsmi prints them (amdsmi_cli/amdsmi_commands.py, static_gpu and metric_gpu): a list of devices, which
later releases wrap in `gpu_data`; a number is `{"value": 137, "unit": "W"}`, and what a device does not say is "N/A".
"""

import json
import re
from typing import Any, Dict, List, Optional, Tuple

MIB = 2**20

# A value: its path in what is printed, and what it is multiplied by. Memory is printed in units of 2^20 bytes as MB.
_NUMBERS: Dict[str, Tuple[Tuple[str, ...], float]] = {
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
_TEXTS = {
    "name": ("asic", "market_name"),
    "uuid": ("asic", "asic_serial"),
    "architecture": ("asic", "target_graphics_version"),
    "driver_version": ("driver", "version"),
}


def parse(text: str) -> List[Dict[str, Any]]:
    """Each device as far as it is printed: `index`, the texts and numbers above, the clocks of its processors.

    Units are those of a monitor's sample; `sm_clock_mhz` is that of a device's fastest die. Empty for other text.
    """
    printed = first_document(text)
    entries = printed.get("gpu_data") if isinstance(printed, dict) else printed
    found = []
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("gpu"), int):
            values: Dict[str, Any] = {name: _text(_at(entry, path)) for name, path in _TEXTS.items()}
            for name, (path, factor) in _NUMBERS.items():
                number = _number(_at(entry, path))
                values[name] = None if number is None else number * factor
            if values["power_limit_w"] is None:  # later releases print a limit of each kind of power tracking
                values["power_limit_w"] = _number(_at(entry, ("limit", "ppt0", "socket_power_limit")))
            values["sm_clock_mhz"] = _fastest(entry, "clk")
            values["sm_clock_max_mhz"] = _fastest(entry, "max_clk")
            found.append({"index": entry["gpu"], **{k: v for k, v in values.items() if v is not None}})
    return found


def first_document(text: str) -> Any:
    """The JSON object or list that starts on the first line from which one can be read; None without one.

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


def _at(entry: Any, path: Tuple[str, ...]) -> Any:
    for key in path:
        entry = entry.get(key) if isinstance(entry, dict) else None
    return entry


def _text(value: Any) -> Optional[str]:
    return value if isinstance(value, str) and value not in ("", "N/A") else None


def _number(value: Any) -> Optional[float]:
    value = value.get("value") if isinstance(value, dict) else value
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _fastest(entry: Dict[str, Any], what: str) -> Optional[float]:
    clocks = entry.get("clock")
    dies = [part for name, part in clocks.items() if name.startswith("gfx")] if isinstance(clocks, dict) else []
    known = [number for number in (_number(_at(die, (what,))) for die in dies) if number is not None]
    return max(known) if known else None
