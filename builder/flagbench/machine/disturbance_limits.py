"""The limits from which a machine counts as disturbed by other programs, or as not fit for a run.

They are the same before a run as in the verdict on its record. A verdict imports no other module of this package,
because it must not depend on the machine on which it is computed.
"""

from __future__ import annotations

OTHER_PROCESSORS = 0.25
"""Logical processors. Fewer that other processes keep busy are a machine's own services."""
STOLEN = 0.02
"""Share of the processors. Less that other virtual machines take is noise."""
LOAD = 0.5
"""Load of the last minute per usable processor, before a run on a processor. The command itself adds to it."""
MEMORY_BEFORE = 2**30
"""Bytes of a device in use before a run. A driver alone uses less on an idle device."""
WHOLE_MEMORY = 0.9
"""Share of a device's nominal memory that its driver shows. A part of a device shows less."""
FREE_DISK = 2**30
"""Bytes on a disk that a run writes to. A run needs less."""
SAMPLE_SECONDS = 1.0
"""Seconds between samples of telemetry. A device that was throttled for less is not counted."""
NOT_THROTTLED = frozenset({"gpu_idle", "applications_clocks_setting", "display_clock_setting", "sync_boost"})
"""Reasons for a lower clock that are not throttling: the clock was set, or the device was idle."""
POWER_CAP = "sw_power_cap"
"""The reason of a device at the power limit in force: under load, normal at the limit that is the device's own."""


def is_capped(limit_w: float | None, own_w: float | None) -> bool:
    """Whether a device's power limit, W, is lower than its own, W. False where one of them is not known."""
    if not limit_w or not own_w:
        return False
    return limit_w < own_w
