"""Accelerators as their vendors' tools list them: one module for each vendor, with the functions of `Vendor`."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

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
"""The remedy for an error of a tool, with the pattern that the error matches."""
LOST_REMEDY = (
    "reset the device, such as with nvidia-smi --gpu-reset, or reboot; if it is lost again, have it replaced"
)
_OTHER_REMEDY = "run the tool by hand; if it fails there too, reload the driver or reboot"


@dataclass(frozen=True)
class LocalDevice:
    """One accelerator."""

    name: str
    """As the driver reports it."""
    memory_gib: float | None
    uuid: str
    partition: bool = False
    """Whether only a MIG instance of it can be used, for which there are no published rows."""


@dataclass(frozen=True)
class Listing:
    """The answer of a vendor's tool to the query for its devices."""

    ending: Ending
    devices: tuple[LocalDevice, ...] = ()
    lost: tuple[str, ...] = ()
    """A sentence for each device that does not answer, with its index or address."""
    problem: str | None = None
    """Why the tool lists no device, in its words; None if it does, if it is not installed, and if all are lost."""
    remedy: str | None = None
    """What to do about the problem."""
    addresses: frozenset[str] = frozenset()
    """PCI addresses that the tool names, as sysfs writes them: 0000:ba:00.0."""


@dataclass(frozen=True)
class DeviceState:
    """The settings of an accelerator; None for those that its tool does not report."""

    uuid: str
    driver: str | None = None
    partitioned: bool = False
    """Whether it is divided into MIG instances."""
    power_limit_w: float | None = None
    power_default_w: float | None = None

    @property
    def power_cap(self) -> str | None:
        """`GPU-0 may draw 300 W, by default 700 W` if its limit was lowered; else None."""
        if not is_capped(self.power_limit_w, self.power_default_w):
            return None
        return f"{self.uuid} may draw {self.power_limit_w:.0f} W, by default {self.power_default_w:.0f} W"


@dataclass(frozen=True)
class Usage:
    """The state of accelerators, and what else runs on them."""

    devices: tuple[DeviceState, ...] = ()
    processes: tuple[tuple[str, str], ...] = ()
    """For each program, the UUID of its device and its name: `python (pid 4711)`."""


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
        """Its devices, or why there are none.

        Args:
            search_path: the folders in which the tool is looked up, as in the variable PATH.
        """

    def usage(self, search_path: str) -> Usage:
        """The state of its devices, and the programs on them."""

    def architecture(self, search_path: str) -> str | None:
        """The compiler's name of its first device, such as sm_90; None if its tool does not report it."""


def ask_tool(tool: str, *arguments: str) -> Answer:
    """Ask a vendor's tool, for TOOL_SECONDS at most."""
    return ask([tool, *arguments], seconds=TOOL_SECONDS)


def listing_of(tool: str, answer: Answer, devices: Sequence[LocalDevice], lost: Sequence[str] = ()) -> Listing:
    """The listing of an answer with these devices; without devices, the reason and what to do."""
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
    ending = Ending.FAILED
    if answer.ending is Ending.NO_ANSWER:
        ending = Ending.NO_ANSWER
    return Listing(ending, problem=f"{tool} {problem}", remedy=remedy)


def addresses_in(text: str) -> frozenset[str]:
    """The PCI addresses in a text, as sysfs writes them."""
    addresses = re.findall(r"\b(?:[0-9a-f]{4})?([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])\b", text.lower())
    return frozenset(addresses)


def older_drivers(drivers: Iterable[str], floor: str) -> list[str]:
    """The versions of a driver that are older than `floor`."""

    def numbers(version: str) -> list[int]:
        return [int(digits) for digits in re.findall(r"\d+", version)]

    return [driver for driver in drivers if numbers(driver) < numbers(floor)]


def vendor_of(name: str | None) -> Vendor | None:
    """The module of a vendor by its name; None without one."""
    for vendor in vendors():
        if name == vendor.NAME:
            return vendor
    return None


def vendors() -> Iterator[Vendor]:
    """The modules of this package."""
    for module in pkgutil.iter_modules(__path__):
        yield cast(Vendor, importlib.import_module(f"{__name__}.{module.name}"))
