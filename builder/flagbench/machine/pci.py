"""Finds the accelerators on the PCI bus in sysfs, which shows them even if their driver does not answer.

`devices.py` compares them with what a vendor's tool lists.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

_PASS_THROUGH_DRIVERS = ("vfio-pci", "pci-stub")
"""The drivers of devices that are passed through to a virtual machine, so that this machine cannot use them."""
_VGA_CONTROLLER = "0x0300"
"""The beginning of the PCI class of a display adapter."""
CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"))
"""Files that exist in a container of Docker or Podman."""
PART_VARIABLES = ("KUBERNETES_SERVICE_HOST", "SLURM_JOB_ID", "NVIDIA_VISIBLE_DEVICES")
"""Environment variables that are set if a process may have got only a part of a machine's devices."""


def accelerators_in_sysfs(
    vendor: str, classes: Sequence[str], root: Path, *, for_display: bool = True
) -> tuple[str, ...]:
    """Find the PCI addresses of a vendor's accelerators, such as 0000:ba:00.0; none if the folder does not exist.

    Args:
        vendor: the PCI id of the vendor, such as 0x10de.
        classes: the beginnings of the PCI classes of its accelerators: 0x03 are display controllers, 0x12 processing
            accelerators.
        root: the folder /sys/bus/pci/devices.
        for_display: whether a display adapter without a driver counts. It may be too old for the vendor's driver.
    """
    addresses = []
    for device in sorted(root.glob("*")):
        pci_class = _read(device / "class")
        if _read(device / "vendor") != vendor or not pci_class.startswith(tuple(classes)):
            continue
        driver = None
        if (device / "driver").exists():
            driver = (device / "driver").resolve().name
        if driver in _PASS_THROUGH_DRIVERS:
            continue
        is_virtual_function = (device / "physfn").exists()
        if is_virtual_function:  # It is a part of another device, which has an entry of its own.
            continue
        if driver is None and pci_class.startswith(_VGA_CONTROLLER) and not for_display:
            continue
        addresses.append(device.name)
    return tuple(addresses)


def sees_whole_machine() -> bool:
    """Whether a vendor's tool shows this process every device of the machine.

    In a container or a job it may show fewer, while sysfs still shows all.
    """
    if any(mark.exists() for mark in CONTAINER_MARKS):
        return False
    return not any(name in os.environ for name in PART_VARIABLES)


def _read(path: Path) -> str:
    """Read an attribute in sysfs; empty if it cannot be read."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
