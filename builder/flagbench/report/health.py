"""The health of this machine's devices as a table: what their driver counts and says, and what it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flagbench.console.page import Table
from flagbench_core.health.reading import DeviceHealth

_ACTIONS = ("none", "reset", "reboot", "drain P2P", "drain and reset", "5", "bus reset", "system reboot")
"""By the number of the recovery action; what 5 is depends on the driver."""
_FABRIC = ("none", "not started", "in progress", "completed")
"""By the state of the fabric."""


def health_table(devices: Sequence[DeviceHealth]) -> Table:
    """One row for each device; a cell without a value has the reason. Without devices the table is empty."""
    rows = [_row(device) for device in devices]
    columns = ("DEVICE", "ECC ERRORS", "ROWS", "ACTION", "PCIE", "NVLINK", "HEAT", "FABRIC")
    return Table(columns, rows, wrap=columns[1:], title="device health, by its driver since it was loaded")


def _row(device: DeviceHealth) -> tuple[str, ...]:
    name = f"{device.index} {device.name or device.uuid or ''}".rstrip()
    if not device.answered:
        return (name, f"does not answer: {device.unanswered}", *[""] * 6)
    return (
        name,
        _cell(device, "ecc_uncorrected", _errors),
        _cell(device, "row_remap_failed", _remapped),
        _cell(device, "recovery_action", _action),
        _cell(device, "pcie_width", _pcie),
        _cell(device, "nvlinks_up", _links),
        _heat(device),
        _cell(device, "fabric_state", _fabric),
    )


def _cell(device: DeviceHealth, name: str, describe: Callable[[DeviceHealth], str]) -> str:
    """What `describe` says of a device, or why the field `name` is not known."""
    if getattr(device, name) is None:
        return device.refusals.get(name, "not known")
    return describe(device)


def _errors(device: DeviceHealth) -> str:
    if device.ecc_corrected is None:
        return f"{device.ecc_uncorrected} uncorrected"
    return f"{device.ecc_uncorrected} uncorrected, {device.ecc_corrected} corrected"


def _remapped(device: DeviceHealth) -> str:
    if device.row_remap_failed:
        return "replacement failed"
    if device.row_remap_pending:
        return "replaced at the next reset"
    replaced = (device.row_remap_corrected or 0) + (device.row_remap_uncorrected or 0)
    return f"{replaced} replaced"


def _action(device: DeviceHealth) -> str:
    assert device.recovery_action is not None
    if device.recovery_action < len(_ACTIONS):
        return _ACTIONS[device.recovery_action]
    return str(device.recovery_action)


def _pcie(device: DeviceHealth) -> str:
    link = f"x{device.pcie_width}"
    if device.pcie_generation is not None:
        link = f"gen {device.pcie_generation} {link}"
    if device.pcie_generation_max is None or device.pcie_width_max is None:
        return link
    return f"{link} of gen {device.pcie_generation_max} x{device.pcie_width_max}"


def _links(device: DeviceHealth) -> str:
    words = f"{len(device.nvlinks_up or ())} up"
    if device.nvlinks_down:
        words += f", {len(device.nvlinks_down)} down"
    return words


def _heat(device: DeviceHealth) -> str:
    """How long heat lowered the clocks, as one number where the driver counts only one."""
    parts = [device.slowed_sw_thermal_ns, device.slowed_hw_thermal_ns]
    counted = [nanoseconds for nanoseconds in parts if nanoseconds is not None]
    if counted:
        return f"{sum(counted) / 1e9:.1f} s"
    if device.slowed_thermal_ns is not None:
        return f"{device.slowed_thermal_ns / 1e9:.1f} s"
    return device.refusals.get("slowed_thermal_ns", "not known")


def _fabric(device: DeviceHealth) -> str:
    assert device.fabric_state is not None
    if device.fabric_state < len(_FABRIC):
        return _FABRIC[device.fabric_state]
    return str(device.fabric_state)
