"""The accelerators on the PCI bus, as sysfs shows them, whether or not their driver answers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

_PASSED_ON = ("vfio-pci", "pci-stub")
"""Drivers of devices that belong to a virtual machine."""
_DISPLAY = "0x0300"
CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"))
PART_VARIABLES = ("KUBERNETES_SERVICE_HOST", "SLURM_JOB_ID", "NVIDIA_VISIBLE_DEVICES")
"""Set where a process may be given a part of a machine's devices."""


def accelerators_in_sysfs(
    vendor: str, classes: Sequence[str], root: Path, *, for_display: bool = True
) -> tuple[str, ...]:
    """PCI addresses of a vendor's accelerators, such as 0000:ba:00.0; none where sysfs has no such folder.

    Args:
        vendor: the PCI id, such as 0x10de.
        classes: how the PCI classes of its accelerators start: 0x03 are display, 0x12 processing controllers.
        root: the folder /sys/bus/pci/devices.
        for_display: whether a display adapter without a driver counts. It may be too old for the vendor's driver.
    """
    addresses = []
    for device in sorted(root.glob("*")):
        kind = _read(device / "class")
        driver = None
        if (device / "driver").exists():
            driver = (device / "driver").resolve().name
        if _read(device / "vendor") != vendor or not kind.startswith(tuple(classes)):
            continue
        if driver in _PASSED_ON or (device / "physfn").exists():  # a virtual function is a part of another device
            continue
        if driver is None and kind.startswith(_DISPLAY) and not for_display:
            continue
        addresses.append(device.name)
    return tuple(addresses)


def sees_whole_machine() -> bool:
    """Whether a vendor's tool shows this process each device of the machine; sysfs does so in a container, too."""
    if any(mark.exists() for mark in CONTAINER_MARKS):
        return False
    return not any(name in os.environ for name in PART_VARIABLES)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
