"""This machine's accelerators as their vendor's tool lists them, and those of them that a run would use.

Commands call `this_machine` before a run, to choose a stack and to find published rows. The tools themselves are in
the package `vendors`, a module for each vendor.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from flagbench.machine.pci import accelerators_in_sysfs, sees_whole_machine
from flagbench.machine.vendors import LOST_REMEDY, Listing, LocalDevice, Usage, Vendor, vendors
from flagbench.system.queries import Ending

PCI_DEVICES = Path("/sys/bus/pci/devices")
"""The folder in which sysfs has a folder for each PCI device."""


@dataclass(frozen=True)
class Machine:
    """The accelerators of a machine."""

    devices: tuple[LocalDevice, ...]
    """The accelerators that answer; empty on a machine without any."""
    visible: int
    """How many of them a run would use according to CUDA_VISIBLE_DEVICES."""
    problem: str | None = None
    """Why an installed tool listed no device, in its words; None if it listed one, or is not installed."""
    remedy: str | None = None
    """A remedy for the problem."""
    lost: tuple[str, ...] = ()
    """A sentence for each accelerator that the machine has and that does not answer, with its index or address."""
    tool: Ending = Ending.MISSING
    """How the query of the vendor's tool ended."""
    vendor: str | None = None
    """The vendor of the accelerators according to its tool or to sysfs, as the manifests of devices write it."""

    @property
    def memory_gib(self) -> float | None:
        """The memory of the device that has least, GiB; None if no tool reports it."""
        return min((device.memory_gib for device in self.devices if device.memory_gib), default=None)

    @property
    def described(self) -> str:
        """The devices in words, such as `8 x NVIDIA A100-SXM4-40GB`; several models are joined by `and`."""
        counts: dict[str, int] = {}
        for device in self.devices:
            name = device.name
            if device.partition:
                name += " (partitioned)"
            counts[name] = counts.get(name, 0) + 1
        return " and ".join(f"{count} x {name}" for name, count in counts.items())


def this_machine() -> Machine:
    """List the accelerators of this machine.

    Asks each vendor's tool once in a process, for TOOL_SECONDS at most. Never raises.
    """
    listing, vendor = _find_accelerators(os.environ.get("PATH", os.defpath), PCI_DEVICES)
    return Machine(
        devices=listing.devices,
        visible=len(visible_uuids([device.uuid for device in listing.devices])),
        problem=listing.problem,
        remedy=listing.remedy,
        lost=listing.lost,
        tool=listing.ending,
        vendor=vendor,
    )


def read_usage() -> Usage:
    """Read the settings of the accelerators that a run would use, and the programs on them.

    What no tool reports is left out. Never raises.
    """
    for vendor in vendors():
        usage = vendor.usage(os.environ.get("PATH", os.defpath))
        states = {state.uuid: state for state in usage.devices}
        uuids = [uuid for uuid in visible_uuids([*states]) if uuid in states]
        if uuids:
            programs = tuple(program for program in usage.programs if program.uuid in uuids)
            return Usage(tuple(states[uuid] for uuid in uuids), programs)
    return Usage()


def read_architecture() -> str | None:
    """Read the architecture of the first device as compilers call it, such as sm_90.

    Returns None if no tool reports it. Never raises.
    """
    for vendor in vendors():
        architecture = vendor.architecture(os.environ.get("PATH", os.defpath))
        if architecture is not None:
            return architecture
    return None


def visible_uuids(uuids: Sequence[str]) -> list[str]:
    """Select the devices that CUDA_VISIBLE_DEVICES leaves to a run, in its order; all of them if it is not set.

    Its entries are numbers of devices, or the beginnings of UUIDs. A part of a device (MIG) is returned as it is
    written there. Entries after the first invalid one do not count, and if two name the same device, none counts
    (CUDA C++ Programming Guide, environment variables).

    Args:
        uuids: the UUIDs of all devices, in the order of their numbers.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [*uuids]
    selected: list[str] = []
    for text in visible.split(","):
        uuid = _device_of_entry(text.strip(), uuids)
        if uuid is None:
            break
        selected.append(uuid)
    if len(set(selected)) < len(selected):
        return []
    return selected


def _device_of_entry(text: str, uuids: Sequence[str]) -> str | None:
    """Find the UUID of the device that an entry of CUDA_VISIBLE_DEVICES names; None if the entry is invalid."""
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


class _Accelerators(NamedTuple):
    """The answer of a vendor's tool, and the vendor of this machine's accelerators."""

    listing: Listing
    vendor: str | None
    """None if the machine has no accelerator of a known vendor."""


@cache
def _find_accelerators(path: str, pci: Path) -> _Accelerators:
    """Ask the vendors' tools one after the other until one knows a device of this machine.

    If none does, the result is the first tool that failed; a tool whose vendor's accelerators are on the PCI bus
    takes precedence over one that is merely installed.

    Args:
        path: the folders in which tools are looked up, as in the variable PATH.
        pci: the folder of sysfs with the PCI devices.
    """
    failure = _Accelerators(Listing(Ending.MISSING), None)
    for vendor in vendors():
        listing = vendor.find(path)
        lost = listing.lost
        if listing.ending is Ending.ANSWERED:
            lost += _describe_unlisted(listing, vendor, pci)
        if listing.devices:
            return _Accelerators(replace(listing, lost=lost), vendor.NAME)
        if lost:
            listing = replace(listing, lost=lost, problem="; ".join(lost), remedy=LOST_REMEDY)
            return _Accelerators(listing, vendor.NAME)
        if listing.problem is None:
            continue
        if failure.vendor is None and accelerators_in_sysfs(vendor.PCI_VENDOR, vendor.PCI_CLASSES, pci):
            failure = _Accelerators(listing, vendor.NAME)
        elif failure.listing.problem is None:
            failure = _Accelerators(listing, failure.vendor)
    return failure


def _describe_unlisted(listing: Listing, vendor: Vendor, pci: Path) -> tuple[str, ...]:
    """Write a sentence for each accelerator that sysfs shows and the vendor's tool does not list.

    The result is empty in a container or a job, in which sysfs may show more devices than the process may use.
    """
    if not sees_whole_machine() or any(device.partition for device in listing.devices):
        return ()
    present = accelerators_in_sysfs(vendor.PCI_VENDOR, vendor.PCI_CLASSES, pci, for_display=False)
    listed = len(listing.devices) + len(listing.lost)
    if len(present) <= listed:
        return ()
    missing = [address for address in present if address not in listing.addresses]
    if len(missing) > len(present) - listed:  # The tool does not print the address of every device that it lists.
        return (f"sysfs has {len(present)} accelerators, and {vendor.TOOL} lists {listed}",)
    return tuple(f"{address} is in sysfs, and {vendor.TOOL} does not list it" for address in missing)
