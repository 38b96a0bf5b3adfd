"""Accelerators as their vendors' tools show them: a module here for each vendor, with the functions of `Vendor`."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, cast

from flagbench.machine.limits import is_capped


@dataclass(frozen=True)
class LocalDevice:
    """One accelerator."""

    name: str
    """As the driver reports it."""
    memory_gib: float | None
    uuid: str
    partition: bool = False
    """Whether only a part of it can be used (MIG): no published row is for that."""


@dataclass(frozen=True)
class DeviceState:
    """What an accelerator is set to. What its tool does not say is None."""

    uuid: str
    driver: str | None = None
    partitioned: bool = False
    """Whether it is divided into parts (MIG)."""
    power_limit_w: float | None = None
    power_default_w: float | None = None

    @property
    def power_cap(self) -> str | None:
        """`GPU-0 may draw 300 W, by default 700 W`, where its limit was lowered; else None."""
        if not is_capped(self.power_limit_w, self.power_default_w):
            return None
        return f"{self.uuid} may draw {self.power_limit_w:.0f} W, by default {self.power_default_w:.0f} W"


@dataclass(frozen=True)
class Usage:
    """The state of accelerators, and what else runs on them."""

    devices: tuple[DeviceState, ...] = ()
    processes: tuple[tuple[str, str], ...] = ()
    """Of each program the UUID of its device, and its name: `python (pid 4711)`."""


class Vendor(Protocol):
    """A vendor's tool. Nothing raises where it is missing, hangs or prints something else."""

    def find(self, path: str) -> tuple[tuple[LocalDevice, ...], str | None]:
        """Its devices, or why there are none; None if the tool is not installed. `path`: as the variable PATH."""

    def usage(self, path: str) -> Usage:
        """What is known of its devices."""

    def architecture(self, path: str) -> str | None:
        """What the compiler calls its first device, such as sm_90; None if its tool does not say."""


def older_drivers(drivers: Iterable[str], floor: str) -> list[str]:
    """The versions of a driver that are older than `floor`."""

    def numbers(version: str) -> list[int]:
        return [int(digits) for digits in re.findall(r"\d+", version)]

    return [driver for driver in drivers if numbers(driver) < numbers(floor)]


def vendors() -> Iterator[Vendor]:
    """Every module here."""
    for module in pkgutil.iter_modules(__path__):
        yield cast(Vendor, importlib.import_module(f"{__name__}.{module.name}"))
