"""This machine's accelerators, as their vendor's tool names them, and those that a run would see."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from flagbench.machine.pci import accelerators_in_sysfs, sees_whole_machine
from flagbench.machine.vendors import LOST_REMEDY, Listing, LocalDevice, Usage, Vendor, vendors
from flagbench.system.queries import Ending

PCI_DEVICES = Path("/sys/bus/pci/devices")
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Machine:
    """What was found on this machine."""

    devices: tuple[LocalDevice, ...]
    visible: int
    """How many of them a run would see, by CUDA_VISIBLE_DEVICES."""
    problem: str | None = None
    """Why an installed tool listed no device, in its words; None if it did, or is not installed."""
    remedy: str | None = None
    """What to do about the problem."""
    lost: tuple[str, ...] = ()
    """Devices that are here and do not answer, each as a sentence with its place."""
    tool: Ending = Ending.MISSING
    """How the question to the vendor's tool ended."""
    vendor: str | None = None
    """Vendor of the accelerators, by its tool or by sysfs, as the manifests of devices write it."""

    @property
    def memory_gib(self) -> float | None:
        """The least memory of a device; None where no tool reports it."""
        return min((device.memory_gib for device in self.devices if device.memory_gib), default=None)

    @property
    def described(self) -> str:
        """`8 x NVIDIA A100-SXM4-40GB`; several models are joined by `and`."""
        counts: dict[str, int] = {}
        for device in self.devices:
            name = device.name
            if device.partition:
                name += " (partitioned)"
            counts[name] = counts.get(name, 0) + 1
        return " and ".join(f"{count} x {name}" for name, count in counts.items())


def this_machine() -> Machine:
    """The accelerators here. Asks each vendor's tool once in a process, for TOOL_SECONDS at most; never raises."""
    listing, vendor = _listing_and_vendor(os.environ.get("PATH", os.defpath), PCI_DEVICES)
    return Machine(
        devices=listing.devices,
        visible=len(visible_uuids([device.uuid for device in listing.devices])),
        problem=listing.problem,
        remedy=listing.remedy,
        lost=listing.lost,
        tool=listing.ending,
        vendor=vendor,
    )


def usage_now() -> Usage:
    """The state of the accelerators that CUDA_VISIBLE_DEVICES leaves, as far as a tool reports it. Never raises."""
    for vendor in vendors():
        usage = vendor.usage(os.environ.get("PATH", os.defpath))
        states = {state.uuid: state for state in usage.devices}
        uuids = [uuid for uuid in visible_uuids([*states]) if uuid in states]
        if uuids:
            processes = tuple(process for process in usage.processes if process[0] in uuids)
            return Usage(tuple(states[uuid] for uuid in uuids), processes)
    return Usage()


def architecture_here() -> str | None:
    """The compiler's name of the first device, such as sm_90; None where no tool reports it. Never raises."""
    for vendor in vendors():
        architecture = vendor.architecture(os.environ.get("PATH", os.defpath))
        if architecture is not None:
            return architecture
    return None


def visible_uuids(uuids: Sequence[str]) -> list[str]:
    """The devices that CUDA_VISIBLE_DEVICES leaves, parts of a device as they are written.

    Its entries count up to the first invalid one; if an entry is repeated, there are none (CUDA C++ Programming
    Guide, environment variables).
    """
    visible = os.environ.get(_VISIBLE)
    if visible is None:
        return [*uuids]
    left: list[str] = []
    for text in visible.split(","):
        uuid = _device_of_entry(text.strip(), uuids)
        if uuid is None:
            break
        left.append(uuid)
    if len(set(left)) < len(left):
        return []
    return left


def _device_of_entry(text: str, uuids: Sequence[str]) -> str | None:
    """The device that an entry of CUDA_VISIBLE_DEVICES names, by its number or how its UUID starts; None: invalid."""
    if text.isascii() and text.isdigit():
        number = int(text)
        if number < len(uuids):
            return uuids[number]
        return None
    if text.startswith("MIG-"):
        return text
    matching = [uuid for uuid in uuids if uuid.startswith(text)]
    if text and len(matching) == 1:
        return matching[0]
    return None


@cache
def _listing_and_vendor(path: str, pci: Path) -> tuple[Listing, str | None]:
    """The listing of the first tool that finds a device, else of the first that failed; and the devices' vendor."""
    failed, whose = Listing(Ending.MISSING), None
    for vendor in vendors():
        listing = vendor.find(path)
        lost = listing.lost
        if listing.ending is Ending.ANSWERED:
            lost += _unlisted(listing, vendor, pci)
        if listing.devices:
            return replace(listing, lost=lost), vendor.NAME
        if lost:
            return replace(listing, lost=lost, problem="; ".join(lost), remedy=LOST_REMEDY), vendor.NAME
        if listing.problem is None:
            continue
        present = accelerators_in_sysfs(vendor.PCI_VENDOR, vendor.PCI_CLASSES, pci)
        if present and whose is None:
            failed, whose = listing, vendor.NAME
        elif failed.problem is None:
            failed = listing
    return failed, whose


def _unlisted(listing: Listing, vendor: Vendor, pci: Path) -> tuple[str, ...]:
    """The accelerators that sysfs shows and the vendor's tool does not list, as sentences."""
    if not sees_whole_machine() or any(device.partition for device in listing.devices):
        return ()
    present = accelerators_in_sysfs(vendor.PCI_VENDOR, vendor.PCI_CLASSES, pci, for_display=False)
    listed = len(listing.devices) + len(listing.lost)
    if len(present) <= listed:
        return ()
    missing = [address for address in present if address not in listing.addresses]
    if len(missing) > len(present) - listed:  # the tool does not name the address of each device
        return (f"sysfs has {len(present)} accelerators, and {vendor.TOOL} lists {listed}",)
    return tuple(f"{address} is in sysfs, and {vendor.TOOL} does not list it" for address in missing)
