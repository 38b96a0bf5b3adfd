"""The difference of two readings of one device: counters by how much they rose, states as last read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Tuple

from flagbench_core.health.reading import COUNTERS, STATES, DeviceHealth

_LIFETIME = {"ecc_corrected": "ecc_corrected_aggregate", "ecc_uncorrected": "ecc_uncorrected_aggregate"}
"""Which counter goes on where the first was reset, as by loading the driver again."""


@dataclass(frozen=True)
class HealthChange:
    """What changed between two readings of a device."""

    rises: Dict[str, int]
    """By how much each counter rose. Absent: one that was not read twice, or that was reset in between."""
    states: Dict[str, Any]
    """Each state as last read: in the second reading, else in the first."""
    nvlinks_lost: Tuple[int, ...]
    """Links that were up before and are not up after."""


def health_change(before: DeviceHealth, after: DeviceHealth) -> HealthChange:
    """Compare two readings of one device, of which the second was later."""
    rises = {}
    for name in COUNTERS:
        rise = _rise(before, after, name)
        if rise is not None:
            rises[name] = rise
    states = {}
    for name in STATES:
        last = getattr(after, name)
        if last is None:
            last = getattr(before, name)
        if last is not None:
            states[name] = last
    lost: Tuple[int, ...] = ()
    if before.nvlinks_up is not None and after.nvlinks_up is not None:
        lost = tuple(link for link in before.nvlinks_up if link not in after.nvlinks_up)
    return HealthChange(rises, states, lost)


def _rise(before: DeviceHealth, after: DeviceHealth, name: str) -> Any:
    """By how much a counter rose; None if that is not known."""
    first, last = getattr(before, name), getattr(after, name)
    if first is None or last is None:
        return None
    if last >= first:
        return last - first
    if name in _LIFETIME:
        return _rise(before, after, _LIFETIME[name])
    return None
