"""The health of the devices of a node after each lap of a soak, read by the first rank of the node."""

from __future__ import annotations

from typing import Any, Sequence

from flagbench_core.health.change import health_change
from flagbench_core.health.judge import HealthFinding, HealthOutcome, judge_health
from flagbench_core.health.kernel_log import KMSG, XidLog, read_xids
from flagbench_core.health.read import read_health, start_reading
from flagbench_core.health.reading import NO_ANSWER, DeviceHealth

READ_SECONDS = 30.0
"""The time that a reading may take between two laps. The devices are idle meanwhile."""
KEPT = (HealthOutcome.FAIL, HealthOutcome.FIX, HealthOutcome.INCONCLUSIVE)
"""Outcomes that a lap of a record lists. Every other outcome is in the readings before and after the run."""
NVIDIA = "nvml"
"""The monitor of the vendor whose errors the kernel log has."""


class LapHealth:
    """Reads devices after each lap and reports changes since the soak began. Never raises for a faulty device."""

    def __init__(self, monitor: str, uuids: Sequence[str], seconds: float = READ_SECONDS, kernel_log: str = KMSG):
        """Start the first reading in the background.

        Args:
            monitor: its name in the stack.
            uuids: the UUIDs of this node's devices, by local rank.
            seconds: the time that each reading may take.
            kernel_log: the path of the kernel log; in tests, a file with lines of one.
        """
        self._monitor = monitor
        self._uuids = uuids
        self._seconds = seconds
        self._kernel_log = kernel_log
        self._last_line = self._log().last
        self._first_reading = start_reading(monitor, uuids, seconds)
        self._before: Sequence[DeviceHealth] | None = None
        self._is_stalled = False

    def read(self) -> dict[str, Any] | None:
        """`findings`, each with the `index` of its device, and `counters`: by device, the rise of each that rose.

        None after a reading that did not end in time: another one would not either.
        """
        if self._is_stalled:
            return None
        if self._before is None:
            self._before = self._first_reading.collect(self._seconds).devices
        after = read_health(self._monitor, self._uuids, self._seconds).devices
        self._is_stalled = any((device.unanswered or "").startswith(NO_ANSWER) for device in after)
        findings = judge_health(self._before, after, self._log(self._last_line))
        counters = [health_change(*pair).rises for pair in zip(self._before, after)]
        return {
            "findings": [_values(finding) for finding in findings if finding.outcome in KEPT],
            "counters": [{name: rise for name, rise in rises.items() if rise} for rises in counters],
        }

    def _log(self, after: int | None = None) -> XidLog:
        """NVIDIA's lines of the kernel log after the line with the number `after`."""
        if self._monitor != NVIDIA:
            return XidLog()
        return read_xids(after, self._kernel_log)


def _values(finding: HealthFinding) -> dict[str, Any]:
    return {
        "index": finding.index,
        "kind": finding.kind,
        "outcome": finding.outcome.value,
        "reason": finding.reason,
    }


def of_all_ranks(readings: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """The readings of all nodes together. `readings`: by rank; None for a rank that does not read.

    Returns `health`, the findings with their `rank`, None if no rank read, and `counters`: for each counter that rose
    on a device, by how much on each rank.
    """
    if not any(readings):
        return {"health": None, "counters": {}}
    findings: list[dict[str, Any]] = []
    counters: dict[str, list[int]] = {}
    for first_rank, reading in enumerate(readings):
        if reading is None:
            continue
        for finding in reading["findings"]:
            rank = first_rank + finding["index"]
            findings.append({"rank": rank, **{name: finding[name] for name in ("kind", "outcome", "reason")}})
        for place, rises in enumerate(reading["counters"]):
            for name, rise in rises.items():
                counters.setdefault(name, [0] * len(readings))[first_rank + place] = rise
    return {"health": findings, "counters": counters}
