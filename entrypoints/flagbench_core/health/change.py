"""The difference between two readings of one device: how much its counters rose, and its last known states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Tuple

from flagbench_core.health.reading import COUNTERS, STATES, DeviceHealth

_LIFETIME = {"ecc_corrected": "ecc_corrected_aggregate", "ecc_uncorrected": "ecc_uncorrected_aggregate"}
"""Which counter of the device's life is used if a counter was reset, as it is when the driver is loaded again."""


@dataclass(frozen=True)
class HealthChange:
    """What changed between two readings of a device."""

    rises: Dict[str, int]
    """How much each counter rose. Counters that were not read twice, or were reset in between, are absent."""
    states: Dict[str, Any]
    """The last known value of each state: from the second reading, or from the first if the second lacks it."""
    nvlinks_lost: Tuple[int, ...]
    """Links that were up before and are not up after."""


def health_change(before: DeviceHealth, after: DeviceHealth) -> HealthChange:
    """Compare an earlier and a later reading of one device."""
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
    """How much a counter rose; None if that is not known."""
    first = getattr(before, name)
    last = getattr(after, name)
    if first is None or last is None:
        return None
    if last >= first:
        return last - first
    if name in _LIFETIME:
        return _rise(before, after, _LIFETIME[name])
    return None
