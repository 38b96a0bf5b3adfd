"""Accelerators as their vendors' tools list them.

Each vendor has a module in this package, with the constants and functions of the protocol `Vendor`. It is found by
`vendors`, so a new vendor is one more module. This file has the types and what the modules share.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast

from flagbench.machine.disturbance_limits import is_capped
from flagbench.system.queries import Answer, Ending, ask, first_line

TOOL_SECONDS = 60.0
"""Time limit of a vendor's tool. It takes up to 30 s without persistence mode, as each query starts the driver."""
_REMEDIES = (
    (r"version mismatch", "reboot, or reload the driver's modules: its library was updated while it was loaded"),
    (r"couldn't communicate|not loaded", "load the driver, or install it again for this kernel, and reboot"),
    (
        r"(?i)permission|not permitted",
        "run as a user who may open the devices, as the groups video and render may",
    ),
    (r"Unknown Error", "in a container, start that again, as it lost its devices; else reload the driver or reboot"),
    (r"did not answer", "turn on persistence mode (nvidia-smi -pm 1) and try again; if the tool still hangs, reboot"),
)
"""Patterns of a tool's error, each with its remedy. The first pattern that matches counts."""
LOST_REMEDY = (
    "reset the device, such as with nvidia-smi --gpu-reset, or reboot; if it is lost again, have it replaced"
)
"""The remedy for a device that does not answer."""
_OTHER_REMEDY = "run the tool by hand; if it fails there too, reload the driver or reboot"


@dataclass(frozen=True)
class LocalDevice:
    """One accelerator of this machine."""

    name: str
    """The name that its driver reports."""
    memory_gib: float | None
    """The size of its memory, GiB; None if its tool does not report it."""
    uuid: str
    """The identifier that its tool reports."""
    partition: bool = False
    """Whether only a part of it can be used, such as a MIG instance; no published row is for a part."""


@dataclass(frozen=True)
class Listing:
    """The answer of a vendor's tool to the query for its devices."""

    ending: Ending
    """How the query ended."""
    devices: tuple[LocalDevice, ...] = ()
    lost: tuple[str, ...] = ()
    """A sentence for each device that does not answer, with its index or address."""
    problem: str | None = None
    """Why the tool lists no device, in its words; None if it lists one, if it is not installed, or if all devices are
    lost."""
    remedy: str | None = None
    """A remedy for the problem."""
    addresses: frozenset[str] = frozenset()
    """The PCI addresses that the tool prints, as sysfs writes them: 0000:ba:00.0."""


@dataclass(frozen=True)
class DeviceState:
    """The settings of an accelerator. Those that its tool does not report are None."""

    uuid: str
    driver: str | None = None
    """The version of its driver."""
    partitioned: bool = False
    """Whether it is divided into MIG instances."""
    power_limit_w: float | None = None
    """The power limit in force, W."""
    power_default_w: float | None = None
    """The power limit that the device has by default, W."""

    @property
    def power_cap(self) -> str | None:
        """A sentence such as `GPU-0 may draw 300 W, by default 700 W` if the limit was lowered; else None."""
        if not is_capped(self.power_limit_w, self.power_default_w):
            return None
        return f"{self.uuid} may draw {self.power_limit_w:.0f} W, by default {self.power_default_w:.0f} W"


class Program(NamedTuple):
    """A program on an accelerator."""

    uuid: str
    """The UUID of the accelerator."""
    name: str
    """The program's name and number: `python (pid 4711)`."""


@dataclass(frozen=True)
class Usage:
    """The settings of accelerators, and the programs on them."""

    devices: tuple[DeviceState, ...] = ()
    programs: tuple[Program, ...] = ()
    """The programs; one that uses several accelerators is listed for each."""


class Vendor(Protocol):
    """A vendor's tool. No function raises if the tool is missing, hangs or prints something unexpected."""

    NAME: str
    """The name of the vendor in the manifests of devices."""
    TOOL: str
    """The vendor's command."""
    PCI_VENDOR: str
    """The PCI id of the vendor, as sysfs writes it."""
    PCI_CLASSES: tuple[str, ...]
    """Prefixes of the PCI classes of its accelerators, as sysfs writes them: 0x03 are display controllers, 0x12
    processing accelerators."""
    MONITOR: str
    """The name of the monitor with which flagbench_core.health reads its devices."""
    WRITES_XIDS: bool
    """Whether its driver writes Xid lines into the kernel log."""

    def find(self, search_path: str) -> Listing:
        """List its devices, or say why there are none.

        Args:
            search_path: the folders in which the tool is looked up, as in the variable PATH.
        """

    def usage(self, search_path: str) -> Usage:
        """Read the settings of its devices, and the programs on them; empty if its tool does not report them."""

    def architecture(self, search_path: str) -> str | None:
        """Read the architecture of its first device, such as sm_90; None if its tool does not report it."""


def ask_tool(tool: str, *arguments: str) -> Answer:
    """Run a vendor's tool, for TOOL_SECONDS at most."""
    return ask([tool, *arguments], seconds=TOOL_SECONDS)


def listing_of(tool: str, answer: Answer, devices: Sequence[LocalDevice], lost: Sequence[str] = ()) -> Listing:
    """Make the listing of a tool's answer.

    Args:
        answer: the answer of the tool.
        devices: the devices that were read from the answer.
        lost: a sentence for each device that does not answer, from the answer.

    Without devices, the listing has the reason and a remedy.
    """
    if devices:
        return Listing(Ending.ANSWERED, tuple(devices), tuple(lost), addresses=addresses_in(answer.text))
    if lost:
        return Listing(Ending.FAILED, lost=tuple(lost))
    if answer.problem is None and not answer.text.strip():
        return Listing(Ending.ANSWERED)
    problem = answer.problem or f"printed no device in a known form: {first_line(answer.text)}"
    remedy = _OTHER_REMEDY
    for pattern, action in _REMEDIES:
        if re.search(pattern, problem):
            remedy = action
            break
    ending = Ending.FAILED  # Also if the tool succeeded and printed nothing that is known.
    if answer.ending is Ending.NO_ANSWER:
        ending = Ending.NO_ANSWER
    return Listing(ending, problem=f"{tool} {problem}", remedy=remedy)


def addresses_in(text: str) -> frozenset[str]:
    """Find the PCI addresses in a text; they are returned as sysfs writes them, with four digits of the domain."""
    addresses = re.findall(r"\b(?:[0-9a-f]{4})?([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])\b", text.lower())
    return frozenset(addresses)


def older_drivers(drivers: Iterable[str], floor: str) -> list[str]:
    """Select the versions of a driver that are older than the version `floor`."""
    oldest = _version_numbers(floor)
    return [driver for driver in drivers if _version_numbers(driver) < oldest]


def _version_numbers(version: str) -> list[int]:
    """The numbers in a version, such as 535, 129 and 3 in 535.129.03."""
    return [int(digits) for digits in re.findall(r"\d+", version)]


def vendor_of(name: str | None) -> Vendor | None:
    """Find the module of a vendor by its name; None if there is none."""
    for vendor in vendors():
        if name == vendor.NAME:
            return vendor
    return None


def vendors() -> Iterator[Vendor]:
    """Import the modules of this package, one for each vendor, in the order of their names."""
    for module in pkgutil.iter_modules(__path__):
        yield cast(Vendor, importlib.import_module(f"{__name__}.{module.name}"))
