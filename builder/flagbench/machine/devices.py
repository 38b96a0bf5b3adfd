"""This machine's accelerators, as their vendor's tool names them, and those that a run would see."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from flagbench.machine.vendors import LocalDevice, Usage, vendors

_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Machine:
    """What was found on this machine."""

    devices: tuple[LocalDevice, ...]
    visible: int
    """How many of them a run would see, by CUDA_VISIBLE_DEVICES."""
    problem: str | None = None
    """Why an installed tool gave no answer; None if it answered or is not installed."""

    @property
    def memory_gib(self) -> float | None:
        """Of the device that has least; None where no tool says it."""
        return min((device.memory_gib for device in self.devices if device.memory_gib), default=None)

    @property
    def described(self) -> str:
        """`8 x NVIDIA A100-SXM4-40GB`; several models are joined by `and`."""
        counts: dict[str, int] = {}
        for device in self.devices:
            name = f"{device.name}{' (partitioned)' if device.partition else ''}"
            counts[name] = counts.get(name, 0) + 1
        return " and ".join(f"{count} x {name}" for name, count in counts.items())


def this_machine() -> Machine:
    """The accelerators here. Asks each vendor's tool once in a process, for a few seconds at most; never raises."""
    devices, problem = _found(os.environ.get("PATH", os.defpath))
    return Machine(devices, len(_visible([device.uuid for device in devices])), problem)


def usage_now() -> Usage:
    """The state of the accelerators that CUDA_VISIBLE_DEVICES leaves; empty where no tool says it. Never raises."""
    for vendor in vendors():
        usage = vendor.usage(os.environ.get("PATH", os.defpath))
        seen = {state.uuid: state for state in usage.devices}
        if shown := [uuid for uuid in _visible([*seen]) if uuid in seen]:
            processes = tuple(entry for entry in usage.processes if entry[0] in shown)
            return Usage(tuple(seen[uuid] for uuid in shown), processes)
    return Usage()


def architecture_here() -> str | None:
    """What the compiler calls the first device, such as sm_90; None where no tool says it. Never raises."""
    for vendor in vendors():
        architecture = vendor.architecture(os.environ.get("PATH", os.defpath))
        if architecture is not None:
            return architecture
    return None


def _visible(uuids: Sequence[str]) -> list[str]:
    """Which devices CUDA_VISIBLE_DEVICES leaves: its entries up to the first invalid one, and none where one of them
    comes twice (CUDA C++ Programming Guide, environment variables), those for parts of a device as they are written.
    """
    value = os.environ.get(_VISIBLE)
    if value is None:
        return [*uuids]
    found: list[str] = []
    for entry in value.split(",") if value.strip() else ():
        token = entry.strip()
        if token.isascii() and token.isdigit():
            named = [*uuids[int(token) : int(token) + 1]]
        elif token.startswith("MIG-"):
            named = [token]
        else:
            named = [uuid for uuid in uuids if token and uuid.startswith(token)]
        if len(named) != 1:
            break
        found += named
    if len(set(found)) < len(found):
        return []
    return found


@cache
def _found(path: str) -> tuple[tuple[LocalDevice, ...], str | None]:
    problem = None
    for vendor in vendors():
        devices, why = vendor.find(path)
        if devices:
            return devices, None
        problem = problem or why
    return (), problem
