"""What was seen of a run's devices and processors."""

from __future__ import annotations

from msgspec import Struct

from flagbench.records.scalars import Amount, Count, Fraction, Number


class DeviceTelemetry(Struct, frozen=True):
    """Telemetry of one device."""

    index: Count | None = None
    name: str | None = None
    throttle_seconds: dict[str, Amount] = {}
    foreign_processes: Count = 0
    mem_used_before_bytes: Count = 0
    mem_used_max_bytes: Count | None = None
    power_mean_w: Number | None = None
    power_max_w: Number | None = None
    energy_j: Number | None = None
    energy_seconds: Number | None = None
    temperature_max_c: Number | None = None
    sm_clock_mean_mhz: Number | None = None
    sm_clock_min_mhz: Number | None = None
    sm_clock_busy_mhz: Amount | None = None
    """The mean while the device was not idle."""
    sm_clock_max_mhz: Amount | None = None
    """The highest that the device allows."""
    power_limit_w: Amount | None = None
    """The limit in force; `power_limit_default_w` is the device's own."""
    power_limit_default_w: Amount | None = None
    util_mean: Number | None = None


class CpuTelemetry(Struct, frozen=True):
    """Telemetry of node 0's logical processors."""

    util_mean: Fraction | None = None
    """The share of them that was busy."""
    others_mean: Amount | None = None
    """How many of them processes outside the run kept busy."""
    steal_mean: Fraction | None = None
    """The share that other virtual machines took."""
    quota: Amount | None = None
    """How many of them the run's control group may use."""
    throttled: Fraction | None = None
    """The share of the quota's periods in which it was used up."""
    mem_used_max_bytes: Count | None = None


class Telemetry(Struct, frozen=True):
    """Telemetry, summarised over the run; of node 0."""

    devices: tuple[DeviceTelemetry, ...] = ()
    cpu: CpuTelemetry = CpuTelemetry()
