"""This machine's accelerators, as their vendor's tool names them, and the published rows that are of them."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from flagbench.machine.vendors import Device, Usage, vendors
from flagbench.manifests.device import DeviceModel
from flagbench.manifests.model import Case, Catalog, Claim
from flagbench.manifests.stack import Stack

_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Machine:
    """What was found on this machine."""

    devices: tuple[Device, ...]
    visible: int
    """How many of them a run would see, by CUDA_VISIBLE_DEVICES."""
    problem: str | None = None
    """Why an installed tool gave no answer; None if it answered or is not installed."""

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


def cards_here(machine: Machine, catalog: Catalog, *, partitions: bool = False) -> tuple[DeviceModel, ...]:
    """The devices of the manifests that this machine has, each once; with `partitions` also as parts of them."""
    found: dict[str, DeviceModel] = {}
    for device in machine.devices:
        if partitions or not device.partition:
            found.update((id, model) for id, model in catalog.devices.items() if model.has_name(device.name))
    return tuple(found.values())


def claims_here(machine: Machine, catalog: Catalog) -> tuple[Claim, ...]:
    """The rows that were published for this machine's devices, those for as many devices as are visible first."""
    names = {card.name for card in cards_here(machine, catalog)}
    rows = [claim for claim in catalog.claims.values() if claim.conditions.get("device_model") in names]
    return tuple(sorted(rows, key=lambda claim: claim.conditions.get("devices") != machine.visible))


def closest_claims(machine: Machine, catalog: Catalog) -> tuple[str, tuple[Claim, ...]]:
    """The published device whose name is most like this machine's, and its rows; no match: an empty name."""
    rows: dict[str, list[Claim]] = {}
    for claim in catalog.claims.values():
        rows.setdefault(str(claim.conditions.get("device_model")), []).append(claim)
    if not machine.devices or not rows:
        return "", ()
    name = machine.devices[0].name
    best = max(rows, key=lambda other: _likeness(name, other))
    return best, tuple(rows[best])


def stacks_here(machine: Machine, catalog: Catalog, case: Case) -> tuple[Stack, ...]:
    """The stacks that run a case on this machine's device: those of its published rows first.

    A device that no manifest has is looked up by its architecture. On a machine without an accelerator, those of the
    processor; on one with several models, none.
    """
    able = [stack for stack in catalog.stacks.values() if case.name in stack.runs]
    if not machine.devices:
        return tuple(stack for stack in able if stack.device_kind == "cpu")
    if len({device.name for device in machine.devices}) > 1:
        return ()
    if known := cards_here(machine, catalog, partitions=True):
        fitting = [stack for stack in able if any(model in stack.accelerators for model in known)]
    else:
        path = os.environ.get("PATH", os.defpath)
        architecture = next(filter(None, (vendor.architecture(path) for vendor in vendors())), None)
        fitting = [stack for stack in able if architecture in stack.device.architectures]
    published = [claim.stack for claim in claims_here(machine, catalog) if claim.case == case.name]
    order = {name: place for place, name in reversed(list(enumerate(published)))}
    return tuple(sorted(fitting, key=lambda stack: order.get(stack.name, len(published))))


def _likeness(name: str, other: str) -> tuple[bool, int, float]:
    """By the model's own word (A100), then by what else is shared."""
    left, right = (set(re.findall(r"[a-z0-9]+", text.lower())) for text in (name, other))
    models = {word for word in left & right if re.fullmatch(r"[a-z]{1,3}\d+[a-z]?", word) and word[:3] != "hbm"}
    return bool(models), len(left & right), difflib.SequenceMatcher(None, name, other).ratio()


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
def _found(path: str) -> tuple[tuple[Device, ...], str | None]:
    problem = None
    for vendor in vendors():
        devices, why = vendor.find(path)
        if devices:
            return devices, None
        problem = problem or why
    return (), problem
