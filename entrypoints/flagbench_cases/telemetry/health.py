"""Readings of device health in a run: the first while its ranks import, the last after they have ended.

Both are added to the sampler's file as lines `{"kind": "health", "when": "before", "devices": [...]}`, once the
sampler has ended. A run waits for neither: the first is ready long before its ranks are, and the last has a limit.
"""

from __future__ import annotations

import time
from typing import Any, Mapping

from flagbench_cases.telemetry.jsonlines import append_lines
from flagbench_cases.telemetry.summary import read_start
from flagbench_core.health.read import READ_SECONDS, PendingReading, start_reading
from flagbench_core.health.reading import HealthReading

BEFORE = "before"
AFTER = "after"
HURRY_SECONDS = 5.0
"""The time that the first reading may still take once the ranks have ended, and the last one if interrupted."""


class HealthReadings:
    """The readings of the devices that the sampler names in its file, `path`."""

    def __init__(self, monitor: str, path: str) -> None:
        self._monitor = monitor
        self._path = path
        self._first: PendingReading | None = None
        self._lines: list[dict[str, Any]] = []

    def start_first(self, env: Mapping[str, str]) -> None:
        """Start the first reading in the background."""
        uuids = self._uuids()
        if uuids:
            self._first = start_reading(self._monitor, uuids, READ_SECONDS, env)

    def read_last(self, env: Mapping[str, str], hurry: bool) -> None:
        """Collect the result of the first reading, and read once more."""
        if self._first is None:
            return
        self._add(BEFORE, self._first.collect(HURRY_SECONDS))
        seconds = READ_SECONDS
        if hurry:
            seconds = HURRY_SECONDS
        self._add(AFTER, start_reading(self._monitor, self._uuids(), seconds, env).collect(seconds))

    def write(self) -> None:
        """Add the readings to the file. On a full disk they are lost."""
        append_lines(self._path, self._lines)

    def _uuids(self) -> list[str]:
        """The UUIDs of the run's devices in its order; empty if the sampler does not name one of them."""
        devices = (read_start(self._path) or {}).get("devices", [])
        uuids = [device.get("uuid") for device in devices]
        if None in uuids:
            return []
        return uuids

    def _add(self, when: str, reading: HealthReading) -> None:
        devices = [device.to_dict() for device in reading.devices]
        self._lines.append({"kind": "health", "t": round(time.time(), 3), "when": when, "devices": devices})
