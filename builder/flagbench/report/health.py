"""The health of this machine's devices as a table, which `flagbench doctor` prints: errors, links, heat and actions.

The values are those that the driver reports (`flagbench_core.health.reading`); for a value that it does not report,
the table has the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flagbench.console.page import Table
from flagbench_core.health.reading import DeviceHealth

_COLUMNS = ("DEVICE", "ECC ERRORS", "ROWS", "ACTION", "PCIE", "NVLINK", "HEAT", "FABRIC")
_RECOVERY_ACTIONS = ("none", "reset", "reboot", "drain P2P", "drain and reset", "5", "bus reset", "system reboot")
"""The words for NVML's numbers of recovery actions, from 0 on; what 5 is depends on the driver."""
_FABRIC_STATES = ("none", "not started", "in progress", "completed")
"""The words for NVML's numbers of the state of the fabric that connects the devices, from 0 on."""
_NOT_KNOWN = "not known"
"""The text of a value that the driver does not report without a reason."""


def health_table(devices: Sequence[DeviceHealth]) -> Table:
    """Return a table with a row for each device; it is empty if there are no devices."""
    rows = [_row(device) for device in devices]
    return Table(_COLUMNS, rows, wrap=_COLUMNS[1:], title="device health, by its driver since it was loaded")


def _row(device: DeviceHealth) -> tuple[str, ...]:
    """Return the cells of a device, in the order of _COLUMNS."""
    name = f"{device.index} {device.name or device.uuid or ''}".rstrip()
    if not device.answered:
        cells = (name, f"does not answer: {device.unanswered}")
        return cells + ("",) * (len(_COLUMNS) - len(cells))
    return (
        name,
        _cell(device, "ecc_uncorrected", _ecc_text),
        _cell(device, "row_remap_failed", _row_remap_text),
        _cell(device, "recovery_action", _action_text),
        _cell(device, "pcie_width", _pcie_text),
        _cell(device, "nvlinks_up", _nvlink_text),
        _heat_text(device),
        _cell(device, "fabric_state", _fabric_text),
    )


def _cell(device: DeviceHealth, field: str, describe: Callable[[DeviceHealth], str]) -> str:
    """Return the description of a device, or why the field that it needs is not known."""
    if getattr(device, field) is None:
        return device.refusals.get(field, _NOT_KNOWN)
    return describe(device)


def _ecc_text(device: DeviceHealth) -> str:
    if device.ecc_corrected is None:
        return f"{device.ecc_uncorrected} uncorrected"
    return f"{device.ecc_uncorrected} uncorrected, {device.ecc_corrected} corrected"


def _row_remap_text(device: DeviceHealth) -> str:
    """Return the state of the rows of memory that were replaced by spare ones because of errors."""
    if device.row_remap_failed:
        return "replacement failed"
    if device.row_remap_pending:
        return "replaced at the next reset"
    replaced = (device.row_remap_corrected or 0) + (device.row_remap_uncorrected or 0)
    return f"{replaced} replaced"


def _action_text(device: DeviceHealth) -> str:
    """Return the action by which the driver says the device recovers; the number of an action of a newer driver."""
    assert device.recovery_action is not None
    if device.recovery_action < len(_RECOVERY_ACTIONS):
        return _RECOVERY_ACTIONS[device.recovery_action]
    return str(device.recovery_action)


def _pcie_text(device: DeviceHealth) -> str:
    """Return the generation and the number of lanes, and the highest ones, such as `gen 4 x8 of gen 5 x16`."""
    link = f"x{device.pcie_width}"
    if device.pcie_generation is not None:
        link = f"gen {device.pcie_generation} {link}"
    if device.pcie_generation_max is None or device.pcie_width_max is None:
        return link
    return f"{link} of gen {device.pcie_generation_max} x{device.pcie_width_max}"


def _nvlink_text(device: DeviceHealth) -> str:
    """Return how many NVLinks are up and, if any is, down, such as `17 up, 1 down`."""
    text = f"{len(device.nvlinks_up or ())} up"
    if device.nvlinks_down:
        text += f", {len(device.nvlinks_down)} down"
    return text


def _heat_text(device: DeviceHealth) -> str:
    """Return for how long heat lowered the clocks, by software and hardware together, such as `12.0 s`.

    Some drivers have one counter for both, in place of two.
    """
    nanoseconds = []
    for counter in (device.slowed_sw_thermal_ns, device.slowed_hw_thermal_ns):
        if counter is not None:
            nanoseconds.append(counter)
    if nanoseconds:
        return f"{sum(nanoseconds) / 1e9:.1f} s"
    if device.slowed_thermal_ns is not None:
        return f"{device.slowed_thermal_ns / 1e9:.1f} s"
    return device.refusals.get("slowed_thermal_ns", _NOT_KNOWN)


def _fabric_text(device: DeviceHealth) -> str:
    """Return the state of the fabric; the number of a state of a newer driver."""
    assert device.fabric_state is not None
    if device.fabric_state < len(_FABRIC_STATES):
        return _FABRIC_STATES[device.fabric_state]
    return str(device.fabric_state)
