"""The monitor of MetaX devices, through the queries of `mx-smi`, whose layout is more stable than its table.

Layouts as in public logs of mx-smi 2.1.12 and 2.2.9: one block per device, which starts with
`GPU#0  MXC500  0000:0e:00.0` and has lines `name : value unit`. Values that a version does not print are absent from
the record. The layout of 2.0.12, used for the published row of Llama2 70B, is unknown and may be unreadable.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, NamedTuple, Sequence

from flagbench_cases.telemetry import command
from flagbench_cases.telemetry.monitors import Monitor, MonitorSample, MonitorUnavailable, run_devices

PLACES = ("/opt/mxdriver/bin", "/opt/maca/bin")
"""The folders in which MetaX's driver and MACA install the tool, if it is not on PATH."""
QUERIES = ("--show-memory", "--show-usage", "--show-temperature", "--show-board-power")
"""The options that print the values of every sample."""
COMPLETE = 5
"""The number of values of a device that answers all queries: --show-memory has two, the others have one."""
TIMEOUT_S = 2.0
"""The most seconds that a call of the tool may take."""
PATIENCE = 3
"""After this many consecutive samples without an answer the tool is not called again."""

_BLOCK = re.compile(r"^\s*GPU\s*#(\d+)\b.*$", re.MULTILINE)
"""The first line of a device's block."""
_LISTED = re.compile(
    r"^\s*GPU\s*#?(?P<index>\d+)\s*:?\s+(?P<name>\S.*?)\s*"
    r"(?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])?"
    r"(?:\s+(?P<state>[A-Za-z]+))?\s*(?:\(UUID:\s*(?P<uuid>[^)\s]+)\s*\))?\s*$"
)
"""The row of a device in the output of `-L`."""
_NUMBER = r"(\d+(?:\.\d+)?)"
_UNITS = {"B": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_VERSIONS = (
    ("mx_smi", re.compile(r"MX-SMI\s+(?:version\s*:\s*)?([\d.]+)", re.IGNORECASE)),
    ("driver", re.compile(r"Kernel Mode Driver Version\s*:\s*([^\s|]+)", re.IGNORECASE)),
    ("maca", re.compile(r"MACA Version\s*:\s*([^\s|]+)", re.IGNORECASE)),
    ("vbios", re.compile(r"\bV?BIOS(?: Version)?\s*:\s*([^\s|]+)", re.IGNORECASE)),
)
_CAP = re.compile(rf"{_NUMBER}W\s*/\s*{_NUMBER}W")
"""A device's power and its limit in the tool's table: `55W / 350W`."""

Values = Dict[str, Any]
"""Values of one device by their keys in a monitor's sample."""


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
    """The values in the block of one device; those that are not printed are absent."""
    values: Values = {}
    usage = _numbers(block, rf"GPU\s*:?\s*{_NUMBER}\s*%")
    if usage:
        values["util"] = usage[0] / 100
    temperatures = _numbers(block, rf"hotspot\S*\s*:?\s*{_NUMBER}\s*(?:C\b|℃|°C\b)")
    if temperatures:
        values["temperature_c"] = max(temperatures)
    power = re.search(rf"^\s*Total\b.*?{_NUMBER}\s*(m?)W\W*$", block, re.MULTILINE | re.IGNORECASE)
    if power:
        values["power_w"] = float(power.group(1))
        if power.group(2):  # mW
            values["power_w"] /= 1000
    for name, row in (("mem_used_bytes", "used"), ("memory_total_bytes", "total")):
        size = _memory(block, row)
        if size is not None:
            values[name] = size
    return values


def _numbers(block: str, pattern: str) -> list[float]:
    """The numbers that a pattern captures at the beginning of lines."""
    return [float(number) for number in re.findall(r"^\s*" + pattern, block, re.MULTILINE | re.IGNORECASE)]


def _memory(block: str, row: str) -> int | None:
    """The used or the total memory of the device, bytes. `row`: `used` or `total`.

    If the tool prints only the part that the host can address (vis_vram), that part; None if it prints neither.
    """
    for kind in ("vram", "vis_vram"):
        pattern = rf"^\s*{kind}\s+{row}\s*:?\s*{_NUMBER}\s*([KMG]?)i?B"
        line = re.search(pattern, block, re.MULTILINE | re.IGNORECASE)
        if line:
            return int(float(line.group(1)) * _UNITS[line.group(2).upper() or "B"])
    return None


def parse_list(text: str) -> dict[int, Values]:
    """The devices in the output of `-L` by their number: each with its `name`, and its `uuid` if it is printed."""
    devices: dict[int, Values] = {}
    for line in text.splitlines():
        row = _LISTED.match(line)
        # The row of a device has a bus address or a UUID; a message about a device has neither.
        if row and (row.group("bus") or row.group("uuid")):
            values = {"name": row.group("name"), "uuid": row.group("uuid")}
            devices[int(row.group("index"))] = {key: value for key, value in values.items() if value}
    return devices


class ToolSummary(NamedTuple):
    """What the tool prints without options."""

    versions: dict[str, str]
    """The versions of the tool (`mx_smi`), `driver`, `maca` and firmware (`vbios`)."""
    power_limits: list[float]
    """The power limit of each row of the table, W."""


def parse_summary(text: str) -> ToolSummary:
    """Parse the output of the tool without options."""
    versions = {}
    for name, pattern in _VERSIONS:
        match = pattern.search(text)
        if match:
            versions[name] = match.group(1)
    return ToolSummary(versions, [float(limit) for _, limit in _CAP.findall(text)])


# -- monitor -------------------------------------------------------------------------------------------------


class MxSmiMonitor:
    """Reads the run's devices. `index` is the number within the run, `mxsmi_index` the tool's."""

    def __init__(self, devices: Sequence[int] | None, tool: command.Tool) -> None:
        self._requested = devices
        self._tool = tool
        self._listed: dict[int, Values] = {}
        """All devices that the tool lists, by its number."""
        self._physical: list[int] = []
        """The tool's numbers of the run's devices, in the run's order."""
        self._summary = ToolSummary({}, [])
        self._commands: list[tuple[str, ...]] = []
        """The arguments of the calls that a sample takes."""
        self._before_run: dict[int, Values] = {}
        """The values of the run's devices before the run, by the tool's number."""
        self._failures = 0
        """How many samples in a row the tool did not answer."""

    def open(self) -> None:
        try:
            self._summary = parse_summary(self._tool.ask((), TIMEOUT_S))
            text = self._tool.ask(("-L",), TIMEOUT_S)
            self._listed = parse_list(text)
            if not self._listed:
                raise command.no_device("mx-smi", text)
            self._physical = self._choose_devices()
            self._choose_commands()
        except (command.NoAnswer, MonitorUnavailable) as error:
            unavailable = MonitorUnavailable(str(error))
            driver = self._summary.versions.get("driver")
            if driver:
                unavailable.facts["driver_version"] = driver
            raise unavailable from None

    def _choose_devices(self) -> list[int]:
        """The tool's numbers of the run's devices, in the run's order."""
        uuids = [self._listed.get(index, {}).get("uuid", "") for index in range(max(self._listed) + 1)]
        variable = "CUDA_VISIBLE_DEVICES"
        if variable not in os.environ and "MACA_VISIBLE_DEVICES" in os.environ:
            variable = "MACA_VISIBLE_DEVICES"
        chosen = run_devices(variable, os.environ.get(variable), uuids, self._requested)
        return [device for device in chosen if isinstance(device, int)]

    def _choose_commands(self) -> None:
        """Find out how to sample, and take the first sample: with all queries in one call, else with one call each.

        Raises NoAnswer if no call prints a value that can be read.
        """
        self._commands = [QUERIES]
        self._before_run = self._read([QUERIES])
        if _count(self._before_run) == len(self._physical) * COMPLETE:
            return
        # Some versions take one query at a time.
        single_commands: list[tuple[str, ...]] = []
        single_values: dict[int, Values] = {}
        for query in QUERIES:
            values = self._read([(query,)])
            if values:
                single_commands.append((query,))
                _merge(single_values, values)
        if _count(single_values) > _count(self._before_run):
            self._commands = single_commands
            self._before_run = single_values
        if not self._before_run:
            raise command.NoAnswer("mx-smi prints no value in a known layout")

    def _read(self, commands: Sequence[tuple[str, ...]]) -> dict[int, Values]:
        """Call the tool with each of `commands`, and return the values of the run's devices by the tool's number."""
        devices: dict[int, Values] = {}
        for query in commands:
            _merge(devices, parse_devices(self._tool.ask(query, TIMEOUT_S)))
        return {index: devices[index] for index in self._physical if devices.get(index)}

    def static(self) -> dict[str, Any]:
        versions, limits = self._summary
        rows = sorted(self._listed)  # the numbers of the devices in the order of the tool's table
        devices = []
        for index, physical in enumerate(self._physical):
            device = {"index": index, "mxsmi_index": physical, **self._listed.get(physical, {})}
            before_run = self._before_run.get(physical, {})
            for key in ("memory_total_bytes", "mem_used_bytes"):
                if key in before_run:
                    device[key] = before_run[key]
            if len(limits) == len(rows):
                device["power_limit_w"] = limits[rows.index(physical)]
            devices.append(device)
        static: dict[str, Any] = {"devices": devices, "versions": versions}
        if "driver" in versions:
            static["driver_version"] = versions["driver"]
        return static

    def sample(self) -> MonitorSample:
        if self._failures >= PATIENCE:
            return MonitorSample([], [])
        try:
            values_now = self._read(self._commands)
        except command.NoAnswer as error:
            self._failures += 1
            failures = [{"device": index, "reason": str(error)} for index in range(len(self._physical))]
            return MonitorSample([], failures)
        self._failures = 0
        devices, errors = [], []
        for index, physical in enumerate(self._physical):
            values = values_now.get(physical, {})
            values.pop("memory_total_bytes", None)  # it is among the static values
            if values:
                devices.append({"index": index, **values})
            else:
                errors.append({"device": index, "reason": f"mx-smi no longer shows GPU#{physical}"})
        return MonitorSample(devices, errors)

    def close(self) -> None:
        self._tool.close()


def _count(values: dict[int, Values]) -> int:
    """The number of values of all devices together."""
    return sum(len(device) for device in values.values())


def _merge(into: dict[int, Values], values: dict[int, Values]) -> None:
    """Add values to those of the same devices in `into`."""
    for index, device_values in values.items():
        into.setdefault(index, {}).update(device_values)
