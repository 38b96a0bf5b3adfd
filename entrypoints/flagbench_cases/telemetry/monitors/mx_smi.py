"""The monitor of MetaX devices, through the queries of `mx-smi`, whose layout is more stable than its table.

Layouts as in public logs of mx-smi 2.1.12 and 2.2.9: one block per device, which starts with
`GPU#0  MXC500  0000:0e:00.0` and has lines `name : value unit`. Values that a version does not print are absent from
the record. The layout of 2.0.12, used for the published row of Llama2 70B, is unknown and may be unreadable.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Sequence

from flagbench_cases.telemetry import command
from flagbench_cases.telemetry.monitors import Monitor, MonitorSample, MonitorUnavailable, run_devices

# Where MetaX's driver and MACA install the tool if it is not on PATH.
PLACES = ("/opt/mxdriver/bin", "/opt/maca/bin")
QUERIES = ("--show-memory", "--show-usage", "--show-temperature", "--show-board-power")
COMPLETE = 5  # values of a device that answers all queries: memory has two
TIMEOUT_S = 2.0
# After this many consecutive samples without an answer the tool is not called again.
PATIENCE = 3

_BLOCK = re.compile(r"^\s*GPU\s*#(\d+)\b.*$", re.MULTILINE)
_LISTED = re.compile(
    r"^\s*GPU\s*#?(?P<index>\d+)\s*:?\s+(?P<name>\S.*?)\s*"
    r"(?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])?"
    r"(?:\s+(?P<state>[A-Za-z]+))?\s*(?:\(UUID:\s*(?P<uuid>[^)\s]+)\s*\))?\s*$"
)
_NUMBER = r"(\d+(?:\.\d+)?)"
_UNITS = {"B": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_VERSIONS = (
    ("mx_smi", re.compile(r"MX-SMI\s+(?:version\s*:\s*)?([\d.]+)", re.IGNORECASE)),
    ("driver", re.compile(r"Kernel Mode Driver Version\s*:\s*([^\s|]+)", re.IGNORECASE)),
    ("maca", re.compile(r"MACA Version\s*:\s*([^\s|]+)", re.IGNORECASE)),
    ("vbios", re.compile(r"\bV?BIOS(?: Version)?\s*:\s*([^\s|]+)", re.IGNORECASE)),
)
_CAP = re.compile(rf"{_NUMBER}W\s*/\s*{_NUMBER}W")

Values = Dict[str, Any]


def create(devices: Sequence[int] | None = None) -> Monitor:
    """The monitor of the run's `devices`, numbered within the visibility variables (None: all visible ones)."""
    return MxSmiMonitor(devices, command.Tool("mx-smi", PLACES))


# -- parsers -------------------------------------------------------------------------------------------------


def parse_devices(text: str) -> dict[int, Values]:
    """The values of every device by its number, from the output of one or several `--show-` queries.

    Keys and units are those of a monitor's sample, plus `memory_total_bytes`.
    """
    devices: dict[int, Values] = {}
    heads = list(_BLOCK.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    for head, end in zip(heads, ends):
        block = text[head.end() : end]
        # Several queries at once may print one block per device or one per query.
        devices.setdefault(int(head.group(1)), {}).update(_parse_block(block))
    return devices


def _parse_block(block: str) -> Values:
    values: Values = {}
    usage = _numbers(block, rf"GPU\s*:?\s*{_NUMBER}\s*%")
    if usage:
        values["util"] = usage[0] / 100
    heat = _numbers(block, rf"hotspot\S*\s*:?\s*{_NUMBER}\s*(?:C\b|℃|°C\b)")
    if heat:
        values["temperature_c"] = max(heat)
    power = re.search(rf"^\s*Total\b.*?{_NUMBER}\s*(m?)W\W*$", block, re.MULTILINE | re.IGNORECASE)
    if power:
        values["power_w"] = float(power.group(1))
        if power.group(2):
            values["power_w"] /= 1000
    for name, what in (("mem_used_bytes", "used"), ("memory_total_bytes", "total")):
        size = _memory(block, what)
        if size is not None:
            values[name] = size
    return values


def _numbers(block: str, pattern: str) -> list[float]:
    return [float(number) for number in re.findall(r"^\s*" + pattern, block, re.MULTILINE | re.IGNORECASE)]


def _memory(block: str, what: str) -> int | None:
    """The device's memory, bytes; only the part addressable by the host if nothing else is printed."""
    for kind in ("vram", "vis_vram"):
        pattern = rf"^\s*{kind}\s+{what}\s*:?\s*{_NUMBER}\s*([KMG]?)i?B"
        line = re.search(pattern, block, re.MULTILINE | re.IGNORECASE)
        if line:
            return int(float(line.group(1)) * _UNITS[line.group(2).upper() or "B"])
    return None


def parse_list(text: str) -> dict[int, Values]:
    """Parse `-L`: every device's `name`, and `uuid` if printed."""
    devices: dict[int, Values] = {}
    for line in text.splitlines():
        row = _LISTED.match(line)
        # A device's row has a bus address or a UUID, unlike a message about a device.
        if row and (row.group("bus") or row.group("uuid")):
            values = {"name": row.group("name"), "uuid": row.group("uuid")}
            devices[int(row.group("index"))] = {key: value for key, value in values.items() if value}
    return devices


def parse_summary(text: str) -> tuple[dict[str, str], list[float]]:
    """Parse the output without options: versions of tool, driver, MACA and firmware; power limits, W, by row."""
    versions = {}
    for name, pattern in _VERSIONS:
        match = pattern.search(text)
        if match:
            versions[name] = match.group(1)
    return versions, [float(limit) for _, limit in _CAP.findall(text)]


# -- monitor -------------------------------------------------------------------------------------------------


class MxSmiMonitor:
    """Reads the run's devices. `index` is the number within the run, `mxsmi_index` the tool's."""

    def __init__(self, devices: Sequence[int] | None, tool: command.Tool) -> None:
        self._wanted = devices
        self._tool = tool
        self._listed: dict[int, Values] = {}
        self._physical: list[int] = []
        self._summary = ""
        self._commands: list[tuple[str, ...]] = []
        self._first: dict[int, Values] = {}
        self._failures = 0

    def open(self) -> None:
        try:
            self._summary = self._tool.ask((), TIMEOUT_S)
            text = self._tool.ask(("-L",), TIMEOUT_S)
            self._listed = parse_list(text)
            if not self._listed:
                raise command.no_device("mx-smi", text)
            self._physical = self._choose()
            self._commands = self._settle()
        except (command.NoAnswer, MonitorUnavailable) as error:
            unavailable = MonitorUnavailable(str(error))
            driver = parse_summary(self._summary)[0].get("driver")
            if driver:
                unavailable.facts["driver_version"] = driver
            raise unavailable from None

    def _choose(self) -> list[int]:
        """The tool's numbers of the run's devices, in the run's order."""
        uuids = [self._listed.get(index, {}).get("uuid", "") for index in range(max(self._listed) + 1)]
        variable = "CUDA_VISIBLE_DEVICES"
        if variable not in os.environ and "MACA_VISIBLE_DEVICES" in os.environ:
            variable = "MACA_VISIBLE_DEVICES"
        chosen = run_devices(variable, os.environ.get(variable), uuids, self._wanted)
        return [device for device in chosen if isinstance(device, int)]

    def _settle(self) -> list[tuple[str, ...]]:
        """The commands to run for every sample: all queries in one, else those that work individually."""
        together = self._values([QUERIES])
        if _count(together) == len(self._physical) * COMPLETE:
            self._first = together
            return [QUERIES]
        # Some versions take one query at a time.
        useful: list[tuple[str, ...]] = []
        alone: dict[int, Values] = {}
        for query in QUERIES:
            values = self._values([(query,)])
            if values:
                useful.append((query,))
                _merge(alone, values)
        better = _count(alone) > _count(together)
        self._first = alone if better else together
        if not self._first:
            raise command.NoAnswer("mx-smi prints no value in a known layout")
        return useful if better else [QUERIES]

    def _values(self, commands: Sequence[tuple[str, ...]]) -> dict[int, Values]:
        """The values of the run's devices from the commands' output, by the tool's number."""
        devices: dict[int, Values] = {}
        for query in commands:
            _merge(devices, parse_devices(self._tool.ask(query, TIMEOUT_S)))
        return {index: devices[index] for index in self._physical if devices.get(index)}

    def static(self) -> dict[str, Any]:
        versions, limits = parse_summary(self._summary)
        devices = []
        for index, physical in enumerate(self._physical):
            first, listed = self._first.get(physical, {}), self._listed.get(physical, {})
            device = {"index": index, "mxsmi_index": physical, **listed}
            device.update({key: first[key] for key in ("memory_total_bytes", "mem_used_bytes") if key in first})
            if len(limits) == len(self._listed):
                device["power_limit_w"] = limits[sorted(self._listed).index(physical)]
            devices.append(device)
        static: dict[str, Any] = {"devices": devices, "versions": versions}
        if "driver" in versions:
            static["driver_version"] = versions["driver"]
        return static

    def sample(self) -> MonitorSample:
        if self._failures >= PATIENCE:
            return MonitorSample([], [])
        try:
            devices_now = self._values(self._commands)
        except command.NoAnswer as error:
            self._failures += 1
            return MonitorSample(
                [], [{"device": index, "reason": str(error)} for index in range(len(self._physical))]
            )
        self._failures = 0
        devices, errors = [], []
        for index, physical in enumerate(self._physical):
            values = {
                key: value for key, value in devices_now.get(physical, {}).items() if key != "memory_total_bytes"
            }
            if values:
                devices.append({"index": index, **values})
            else:
                errors.append({"device": index, "reason": f"mx-smi no longer shows GPU#{physical}"})
        return MonitorSample(devices, errors)

    def close(self) -> None:
        self._tool.close()


def _count(values: dict[int, Values]) -> int:
    return sum(len(device) for device in values.values())


def _merge(into: dict[int, Values], values: dict[int, Values]) -> None:
    for index, more in values.items():
        into.setdefault(index, {}).update(more)
