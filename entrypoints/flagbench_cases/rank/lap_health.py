"""Reads the health of the devices of a node after each lap of a soak (laps.py), on the first rank of the node.

Health is what the vendor's monitor and the kernel log report: errors, lost links, throttling.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence

from flagbench_core.health.change import health_change
from flagbench_core.health.judge import HealthFinding, HealthOutcome, judge_health
from flagbench_core.health.kernel_log import KMSG, XidLog, read_xids
from flagbench_core.health.read import read_health, start_reading
from flagbench_core.health.reading import NO_ANSWER, DeviceHealth

READ_SECONDS = 30.0
"""The time that a reading may take between two laps. The devices are idle meanwhile."""
LISTED_OUTCOMES = (HealthOutcome.FAIL, HealthOutcome.FIX, HealthOutcome.INCONCLUSIVE)
"""Outcomes that a lap in the record lists. All outcomes are in the readings before and after the run."""
NVIDIA = "nvml"
"""The monitor of the vendor whose errors the kernel log has."""


class LapReading(NamedTuple):
    """The changes in the health of a node's devices since the soak began."""

    findings: list[dict[str, Any]]
    """`index` of the device, `kind`, `outcome` and `reason` of each finding."""
    counters: list[dict[str, int]]
    """For each device, by how much each counter of errors rose; only counters that rose."""


class LapHealth:
    """Reads devices after each lap and reports changes since the soak began. Never raises for a faulty device."""

    def __init__(self, monitor: str, uuids: Sequence[str], seconds: float = READ_SECONDS, kernel_log: str = KMSG):
        """Start the first reading in the background.

        Args:
            monitor: the name of the vendor's monitor in the stack.
            uuids: the UUIDs of this node's devices, by local rank.
            seconds: the time that each reading may take.
            kernel_log: the path of the kernel log; tests give another file.
        """
        self._monitor = monitor
        self._uuids = uuids
        self._seconds = seconds
        self._kernel_log = kernel_log
        self._last_line = self._log().last
        self._first_reading = start_reading(monitor, uuids, seconds)
        self._before: Sequence[DeviceHealth] | None = None
        """The first reading; None before `read` has waited for it."""
        self._is_stalled = False
        """Whether a reading did not end in time."""

    def read(self) -> LapReading | None:
        """Read the devices now. Returns None after a reading that did not end in time: another would not, either."""
        if self._is_stalled:
            return None
        if self._before is None:
            self._before = self._first_reading.collect(self._seconds).devices
        after = read_health(self._monitor, self._uuids, self._seconds).devices
        self._is_stalled = any((device.unanswered or "").startswith(NO_ANSWER) for device in after)
        findings = judge_health(self._before, after, self._log(self._last_line))
        listed = []
        for finding in findings:
            if finding.outcome in LISTED_OUTCOMES:
                listed.append(_values_of(finding))
        counters = []
        for device_before, device_after in zip(self._before, after):
            rises = health_change(device_before, device_after).rises
            counters.append({name: rise for name, rise in rises.items() if rise})
        return LapReading(listed, counters)

    def _log(self, after: int | None = None) -> XidLog:
        """NVIDIA's errors in the kernel log after the line with the number `after`; empty for other vendors."""
        if self._monitor != NVIDIA:
            return XidLog()
        return read_xids(after, self._kernel_log)


def _values_of(finding: HealthFinding) -> dict[str, Any]:
    return {
        "index": finding.index,
        "kind": finding.kind,
        "outcome": finding.outcome.value,
        "reason": finding.reason,
    }


def join_readings(readings: Sequence[LapReading | None]) -> dict[str, Any]:
    """Join the readings of all nodes, for the record. `readings`: by rank; None for a rank that does not read.

    Returns:
        `health`: the findings with their `rank`; None if no rank read anything. `counters`: for each counter that
        rose on a device, by how much it rose on each rank.
    """
    if all(reading is None for reading in readings):
        return {"health": None, "counters": {}}
    findings: list[dict[str, Any]] = []
    counters: dict[str, list[int]] = {}
    for first_rank, reading in enumerate(readings):
        if reading is None:
            continue
        for finding in reading.findings:
            findings.append(
                {
                    "rank": first_rank + finding["index"],
                    "kind": finding["kind"],
                    "outcome": finding["outcome"],
                    "reason": finding["reason"],
                }
            )
        for index, rises in enumerate(reading.counters):
            for name, rise in rises.items():
                rises_by_rank = counters.setdefault(name, [0] * len(readings))
                rises_by_rank[first_rank + index] = rise
    return {"health": findings, "counters": counters}
